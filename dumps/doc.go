package dumps
