package dumps_test

import (
	"fmt"
	"log"

	"kvq/dumps"
)

func ExampleOpen() {
	f, err := dumps.Open("testdata/layer12.npy", dumps.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	for _, l := range f.Layers {
		fmt.Printf("layer %d: %d KV heads × %d tokens × %d channels of %s\n", l.Number, l.KVHeads, l.Tokens, l.HeadDimK, l.DType)
		fmt.Printf("%d query heads at %d positions, the last %d\n", l.QueryHeads, l.Queries, l.QPositions[l.Queries-1])
		fmt.Printf("scale %v, given: %v, assumed: %v\n", l.Facts.Scale, l.Facts.Given, l.Facts.Assumed)

		head := make([]float32, l.Tokens*l.HeadDimK)
		if err := l.ReadHead(head, dumps.K, 0); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("first key: %.4f\n", head[:3])
	}
	// Output:
	// layer 12: 3 KV heads × 2048 tokens × 64 channels of f16
	// 9 query heads at 64 positions, the last 2047
	// scale 0.125, given: [scale causal rope q_positions], assumed: []
	// first key: [-0.0556 -0.0117 0.0205]
}
