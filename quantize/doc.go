package quantize
