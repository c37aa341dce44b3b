"""Writes the files of this folder, with torch 2.15 and transformers 5.24.

Element (head, token, channel) of part p is ±(512p + 128h + 16t + c), negative
where h + t + c is odd, as in value of helpers_test.go.
"""
import collections
import os

import torch
from transformers import DynamicCache, Gemma3TextConfig


def part(p, heads, dim, dtype=torch.float16, batch=True):
    def value(h, t, c):
        v = 512 * p + 128 * h + 16 * t + c
        return -v if (h + t + c) % 2 else v

    x = torch.tensor([[[value(h, t, c) for c in range(dim)] for t in range(5)] for h in range(heads)], dtype=torch.float32)
    return x.to(dtype)[None] if batch else x.to(dtype)


def k(**a):
    return part(0, 2, 6, **a)


def v(**a):
    return part(1, 2, 4, **a)


def q(**a):
    return part(2, 4, 6, **a)


def tokens_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


class Evil:
    def __reduce__(self):
        return os.system, ("echo this must not run",)


torch.save(((k(), v()), (k(), v())), "tuple.pt")
torch.save({"k": k(dtype=torch.bfloat16, batch=False), "v": v(dtype=torch.float32, batch=False), "q": q(batch=False)}, "dict.pt")
torch.save(collections.OrderedDict([("layers.3.k", k()), ("layers.3.v", v()), ("layers.7.k", k()), ("layers.7.v", v())]), "ordered.pt")
torch.save([{"k": k(), "v": v()}, {"k": k(), "v": v()}], "listdict.pt")
roomy = torch.zeros(1, 2, 9, 6, dtype=torch.float16)
roomy[:, :, 2:7] = k()
torch.save({"past_key_values": [(tokens_first(k()), tokens_first(v())), (roomy[:, :, 2:7], tokens_first(v()))], "note": "hi", "n": 3, "f": 1.5, "none": None, "ok": True}, "strided.pt")
cache = DynamicCache()
for i in range(2):
    cache.update(k(), v(), i)
torch.save(cache, "dynamic.pt")
cache = DynamicCache(config=Gemma3TextConfig(num_hidden_layers=2, hidden_size=12, num_attention_heads=2, head_dim=6, sliding_window=4, layer_types=["sliding_attention", "full_attention"]))
for i in range(2):
    cache.update(k(), v(), i)
torch.save(cache, "dynamic_sliding.pt")
torch.save({"k": k().to(torch.float8_e4m3fn), "v": v().to(torch.float8_e4m3fn)}, "fp8.pt")
torch.save({"k": torch.nn.Parameter(k().float()), "v": v().double().requires_grad_()}, "param.pt")
torch.save({"k": k(), "v": v()}, "proto4.pt", pickle_protocol=4)
torch.save({"k": k(), "v": v(), "x": Evil()}, "evil.pt")
torch.save({"k": k(), "v": v()}, "legacy.pt", _use_new_zipfile_serialization=False)
