package formula

import (
	"encoding/binary"
	"testing"
)

// FuzzGeometry: whatever parses is valid, prints canonically and reads back the same.
func FuzzGeometry(f *testing.F) {
	for _, s := range []string{
		"32xfull:8x128+128", "12xfull:8x64+64;12xsliding128:8x64+64", "12xfull:8x128+128;36xchunked8192:8x128+128",
		"43xsliding128:1x512+0;entries:21xcompressed/4:1x512+0;index:21xcompressed/4:1x128+0;entries:20xcompressed/128:1x512+0",
		"61xfull:1x576+0;index:61xfull:1x128+0", "1xcompressed128/4:1x512+0", "x:x+", "9223372036854775807xfull:1x1+1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ParseGeometry(text)
		if err != nil {
			return
		}
		for _, group := range g {
			if err := group.validate(); err != nil {
				t.Fatalf("%q parsed to an invalid group: %v", text, err)
			}
		}
		back, err := ParseGeometry(g.String())
		if err != nil {
			t.Fatalf("%q prints as %q, which does not parse: %v", text, g, err)
		}
		if !back.Equal(g) {
			t.Fatalf("%q: %v came back as %v", text, g, back)
		}
	})
}

func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"32k", "128K", "1m", "32768", "24GiB", "80G", "24GB", "1.5k", "1e9", "0x10", "1/2", "-1", "9999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseTokens(text); err == nil && n < 1 {
			t.Fatalf("ParseTokens(%q) = %d", text, n)
		}
		if n, err := ParseBytes(text); err == nil && n < 0 {
			t.Fatalf("ParseBytes(%q) = %d", text, n)
		}
		if n, err := ParseBandwidth(text); err == nil && n < minBandwidth {
			t.Fatalf("ParseBandwidth(%q) = %d", text, n)
		}
	})
}

// FuzzEngineOptions: whatever options parse are priced or refused, by every
// engine, without panicking.
func FuzzEngineOptions(f *testing.F) {
	for _, s := range []string{
		"version=0.19.1,block-size=64", "max-num-batched-tokens=2048,async-scheduling=no,prefix-caching=no", "max-model-len=-1,available=24GiB",
		"hybrid=no,kv-layout=BLHNC", "speculative-tokens=3,gpu=sm100", "skip-layers=0+1+sliding_window", "block-size=9223372036854775807",
		"page-size=256,swa-ratio=0.8,tokens=100000,mamba-slots=3", "swa-ratio=1e-300", "tokens-per-block=64,blocks=10", "cache=static",
		"c=32768,np=4,kvu=no,ub=512,b=2048,fa=on,pad=256,swa-full=no,mla=expanded,rs-seq=0",
	} {
		f.Add(s, "auto", int64(4096), int64(2))
	}
	var models []*Model
	for _, name := range []string{"gpt-oss-20b", "DeepSeek-V3.2", "DeepSeek-V4-Flash", "Qwen3.5-27B", "Whisper-tiny"} {
		m, _, err := LookupPreset(name)
		if err != nil {
			f.Fatal(err)
		}
		models = append(models, m)
	}
	f.Fuzz(func(t *testing.T, text, scheme string, context, devices int64) {
		if context < 1 || devices < 1 {
			return
		}
		for _, e := range Engines() {
			options, err := e.ParseOptions([]string{text})
			if err != nil {
				continue
			}
			s := f16
			if e.Scheme != nil {
				if s, err = e.Scheme(scheme); err != nil {
					if s, err = e.Scheme(e.DefaultSchemes[0]); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, m := range models {
				r, err := e.Reserve(Request{Model: m, Context: context, Sequences: 1, TP: devices, PP: min(devices, m.Layers), Scheme: s, Options: options})
				if err != nil {
					continue
				}
				if total, err := r.Total(); err == nil && total <= 0 && r.Refusal == "" {
					t.Fatalf("%s takes %d bytes for %s", e.Name, total, m.Name)
				}
			}
		}
	})
}

// FuzzGGUF: a header gives a model that prices, or an error.
func FuzzGGUF(f *testing.F) {
	f.Add(smallLlama(binary.LittleEndian).bytes(3))
	f.Add(smallLlama(binary.BigEndian).bytes(2))
	headers := llamaHeaders(f, "testdata/llamacpp")
	for _, arch := range []string{"deepseek4", "gemma4", "qwen4exp", "glm5-next", "rwkv6", "nanbeige", "dots3note", "minimax-m3", "granite_swa"} {
		data, err := headers(arch + "-v1.gguf")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	engine := LlamaCpp()
	scheme, err := engine.Scheme("q8_0:q4_0")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := readGGUF(data)
		if err != nil {
			return
		}
		for _, assume := range []bool{false, true} {
			m, err := g.Model(assume)
			if err != nil {
				continue
			}
			if err := m.Validate(); err != nil && len(m.Geometry)+len(m.States) > 0 {
				t.Fatalf("an invalid model: %v", err)
			}
			for _, fa := range []string{"on", "off"} {
				r, err := engine.Reserve(Request{Model: m, Context: 4096, Sequences: 3, TP: 1, PP: 2, Scheme: scheme, Options: Options{"fa": fa, "mtp": "no"}})
				if err != nil {
					continue
				}
				if total, err := r.Total(); err != nil || total < r.PerDevice {
					t.Fatalf("total %d, one device %d: %v", total, r.PerDevice, err)
				}
			}
		}
	})
}
