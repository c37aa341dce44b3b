package formula
