"""Tests of hf.py on tiny random models made here: no download, a few seconds.

Run by `make test-capture`, which installs torch and transformers. What a dump
says is recomputed in float64 from the file alone and held against what the
model's own layers gave out.
"""
import contextlib
import io
import json
import os
import struct
import tempfile
import unittest

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
)

import hf

TOKENS = 48
SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8)


def read(path):
    """The tensors and facts of a safetensors file, read by its specification."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    kinds = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    tensors = {}
    for name, t in header.items():
        if name != "__metadata__":
            first, last = t["data_offsets"]
            tensors[name] = np.frombuffer(data[first:last], kinds[t["dtype"]]).reshape(t["shape"])
    return tensors, json.loads(header["__metadata__"]["kvq"])


def attention_of(tensors, facts, layer):
    """Attention output of the captured rows, [rows, heads, d_v], in float64 from the dump alone."""
    k, v, q = (tensors[f"layers.{layer}.{n}"].astype(np.float64) for n in "kvq")
    fact = facts["layers"][str(layer)]
    at = tensors[f"layers.{layer}.q_positions"]
    t = np.arange(k.shape[1])
    out = np.zeros((len(at), q.shape[0], v.shape[2]))
    for head in range(q.shape[0]):
        kv = head // (q.shape[0] // k.shape[0])
        for row, p in enumerate(at):
            z = fact["scale"] * (k[kv] @ q[head, row])
            if "softcap" in fact:
                z = fact["softcap"] * np.tanh(z / fact["softcap"])
            seen = t <= p
            if "window" in fact:
                seen &= t > p - fact["window"]
            if "chunk" in fact:
                seen &= t // fact["chunk"] == p // fact["chunk"]
            z = np.where(seen, z, -np.inf)
            top = max(z.max(), fact["sinks"][head] if "sinks" in fact else -np.inf)
            e = np.exp(z - top)
            total = e.sum() + (np.exp(fact["sinks"][head] - top) if "sinks" in fact else 0)
            out[row, head] = e / total @ v[kv]
    return out


class Capture(unittest.TestCase):
    def model(self, config):
        """A random model of the config whose norms, sinks and embeddings are not their neutral defaults, and ids to run."""
        torch.manual_seed(7)
        hf.register()
        model = AutoModelForCausalLM.from_config(config, attn_implementation=hf.ATTENTION).eval().float()
        for name, parameter in model.named_parameters():
            if "sinks" in name or "norm" in name:
                torch.nn.init.normal_(parameter, mean=0.5)
            elif "embed" in name:
                torch.nn.init.normal_(parameter)
        return model, torch.randint(0, 64, (1, TOKENS))

    def capture(self, model, ids, **changes):
        """The tensors, the facts and the truth table of a capture."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "dump.safetensors")
            args = hf.parse(["--model", "random", "--text", "random.txt", "--queries", "16", "--store", "f32", "-o", path])
            for key, value in changes.items():
                setattr(args, key, value)
            load, hf.load = hf.load, lambda _: (model, ids)
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    hf.capture(args)
            finally:
                hf.load = load
            self.assertFalse([f for f in os.listdir(folder) if f.startswith(".kvq-")], "temporary files are left")
            truth = None
            if args.verify:
                with open(path + ".truth.tsv", encoding="utf-8") as f:
                    truth = f.read()
            return *read(path), truth

    def check(self, config):
        """The dump's attention, through the model's own projection, is the module's output."""
        model, ids = self.model(config)
        outputs = {}
        for index, module in hf.attention_modules(model).items():
            module.register_forward_hook(lambda m, i, o, index=index: outputs.__setitem__(index, o[0][0].detach().double().numpy()))
        tensors, facts, _ = self.capture(model, ids)
        for index, module in hf.attention_modules(model).items():
            at = tensors[f"layers.{index}.q_positions"]
            self.assertEqual(list(at), [(i + 1) * TOKENS // 16 - 1 for i in range(16)])
            heads = attention_of(tensors, facts, index).reshape(len(at), -1)
            projection = hf.output_projection(module)
            want = outputs[index][at]
            got = heads @ projection.weight.detach().double().numpy().T
            if projection.bias is not None:
                got += projection.bias.detach().double().numpy()
            self.assertLess(np.abs(got - want).max(), 1e-4 * max(1, np.abs(want).max()), f"layer {index}")
        return tensors, facts

    def test_llama(self):
        tensors, facts = self.check(LlamaConfig(**SMALL))
        self.assertAlmostEqual(facts["layers"]["0"]["scale"], 8**-0.5)
        self.assertEqual(tensors["layers.0.k"].shape, (2, TOKENS, 8))
        self.assertEqual(tensors["layers.0.q"].shape, (4, 16, 8))
        self.assertEqual(tensors["layers.0.o"].shape, (32, 32))
        self.assertEqual(facts["layers"]["0"]["rope"], {"theta": 10000.0, "style": "half"})

    def test_mistral_window(self):
        _, facts = self.check(MistralConfig(**SMALL, sliding_window=12))
        self.assertEqual([facts["layers"][str(i)].get("window") for i in range(3)], [12, 12, 12])

    def test_gemma3_windows(self):
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        _, facts = self.check(Gemma3TextConfig(**SMALL, sliding_window=10, layer_types=kinds, query_pre_attn_scalar=20))
        self.assertEqual([facts["layers"][str(i)].get("window") for i in range(3)], [10, None, 10])
        self.assertAlmostEqual(facts["layers"]["1"]["scale"], 20**-0.5)
        self.assertNotEqual(facts["layers"]["0"]["rope"]["theta"], facts["layers"]["1"]["rope"]["theta"])

    def test_gemma2_softcap(self):
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        _, facts = self.check(Gemma2Config(**SMALL, sliding_window=10, layer_types=kinds, attn_logit_softcapping=1.5))
        self.assertEqual(facts["layers"]["1"]["softcap"], 1.5)

    def test_gpt_oss_sinks(self):
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        _, facts = self.check(GptOssConfig(**SMALL, sliding_window=10, layer_types=kinds, num_local_experts=4, num_experts_per_tok=2))
        self.assertEqual(len(facts["layers"]["0"]["sinks"]), 4)
        self.assertEqual([facts["layers"][str(i)].get("window") for i in range(3)], [10, None, 10])

    def test_llama4_chunks(self):
        kinds = ["chunked_attention", "full_attention", "chunked_attention"]
        config = Llama4TextConfig(**SMALL, attention_chunk_size=16, layer_types=kinds, no_rope_layers=[1, 0, 1], num_local_experts=2,
                                  num_experts_per_tok=1, intermediate_size_mlp=48, interleave_moe_layer_step=2)
        _, facts = self.check(config)
        self.assertEqual([facts["layers"][str(i)].get("chunk") for i in range(3)], [16, None, 16])

    def test_mla_expanded(self):
        small = {k: v for k, v in SMALL.items() if k != "head_dim"}
        config = DeepseekV3Config(**{**small, "num_key_value_heads": 4}, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=6,
                                  n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=16, first_k_dense_replace=1)
        tensors, _ = self.check(config)
        self.assertEqual((tensors["layers.0.k"].shape, tensors["layers.0.v"].shape), ((4, TOKENS, 12), (4, TOKENS, 6)))

    def test_o_weight(self):
        """o and o_weight give the share of the residual stream: of the attention's whole output it is known."""
        for config in (LlamaConfig(**SMALL), Gemma3TextConfig(**SMALL, sliding_window=10)):
            model, ids = self.model(config)
            block = dict(model.named_modules())["model.layers.1"]
            seen = {}

            def keep(name):
                def hook(module, inputs, output):
                    output = output[0] if isinstance(output, tuple) else output
                    if output.shape[1] == TOKENS:  # not the probe of a norm's gain
                        seen[name] = output.reshape(TOKENS, -1).double().square().sum(-1).numpy()

                return hook

            (hf.output_norm(block) or block.self_attn).register_forward_hook(keep("attention"))
            block.register_forward_pre_hook(lambda m, inputs: seen.update({"in": inputs[0].reshape(TOKENS, -1).double().square().sum(-1).numpy()}))
            block.register_forward_hook(keep("out"))
            tensors, facts, _ = self.capture(model, ids)
            at = tensors["layers.1.q_positions"]
            heads = attention_of(tensors, facts, 1).reshape(len(at), -1)
            o, weight = (tensors[f"layers.1.{n}"].astype(np.float64) for n in ("o", "o_weight"))
            got = weight * np.square(heads @ o.T).sum(-1)
            want = seen["attention"][at] / (seen["in"] + seen["out"])[at]
            # o is stored in f16, which bounds the agreement.
            np.testing.assert_allclose(got, want, rtol=5e-3)

    def test_verify(self):
        """exact changes nothing; fewer bits change more."""
        _, _, truth = self.capture(*self.model(LlamaConfig(**SMALL)), verify="exact:exact,int8-token,int2-asym-token/4")
        lines = [line.split("\t") for line in truth.splitlines()]
        self.assertEqual(lines[0], ["pair", "logit_kl_mean", "logit_kl_p99", "top1_flip_rate", "perplexity_ratio"])
        kl = [float(line[1]) for line in lines[1:]]
        self.assertLess(abs(kl[0]), 1e-12)
        self.assertGreater(kl[1], 0)
        self.assertGreater(kl[2], 10 * kl[1])

    def test_integer_codec_by_hand(self):
        x = torch.tensor([[[[1.0, -2.0, 0.5, 4.0], [0.0, 0.0, 0.0, 0.0]]]])
        # int4 symmetric: scale 4/7 as f16 = 0.5712890625; codes 2, -4 (3.50…), 1, 7.
        scale = 0.5712890625
        want = torch.tensor([[[[2 * scale, -4 * scale, scale, 7 * scale], [0, 0, 0, 0]]]])
        torch.testing.assert_close(hf.side_codec("int4-token", "")(x), want, rtol=0, atol=0)
        # int2 asymmetric over pairs of channels: scale (max-min)/3, offset min, both f16.
        y = hf.side_codec("int2-asym-token/2", "")(x)
        torch.testing.assert_close(y[0, 0, 0, 1], torch.tensor(-2.0), rtol=0, atol=0)
        torch.testing.assert_close(y[0, 0, 0, 3], torch.tensor(3 * np.float32(np.float16(3.5 / 3)) + np.float32(0.5)), rtol=0, atol=0)

    def test_refusals(self):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL), attn_implementation="eager")
        with self.assertRaisesRegex(hf.Refused, "attention is on layers 0, 1, 2"):
            hf.chosen("7", hf.attention_modules(model))
        with self.assertRaisesRegex(hf.Refused, "neither causal"):
            mask = torch.zeros(1, 1, 8, 8, dtype=torch.bool)
            mask[..., 3] = True
            hf.visible(0, mask, 8, 8, torch.tensor([2, 5, 7]))
        with self.assertRaisesRegex(hf.Refused, "no attention module"):
            hf.attention_modules(torch.nn.Linear(2, 2))
        self.assertEqual(hf.chosen("0,last", hf.attention_modules(model)), [0, 2])
        session = hf.Session(model, [0], hf.parse(["--model", "m", "--text", "t", "-o", "o"]), None, 8)
        with self.assertRaisesRegex(hf.Refused, "--store bf16"):
            session.narrow(3, "k", torch.tensor([1e5]))


if __name__ == "__main__":
    unittest.main()
