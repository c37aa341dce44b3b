"""Writes the files of this folder with mlx 0.32 and the cache classes of mlx-lm 0.32.

Element (head, token, channel) of part p is ±(512p + 128h + 16t + c), negative
where h + t + c is odd, as in value of helpers_test.go.
"""
import mlx.core as mx
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, save_prompt_cache


def part(p, tokens, dim):
    def value(h, t, c):
        v = 512 * p + 128 * h + 16 * t + c
        return -v if (h + t + c) % 2 else v

    return mx.array([[[[value(h, t, c) for c in range(dim)] for t in tokens] for h in range(2)]]).astype(mx.float16)


def fill(cache, tokens, prompt):
    """A prompt at once, the remaining tokens one at a time."""
    cache.update_and_fetch(part(0, range(prompt), 6), part(1, range(prompt), 4))
    for t in range(prompt, tokens):
        cache.update_and_fetch(part(0, [t], 6), part(1, [t], 4))
    return cache


save_prompt_cache(
    "mlx.safetensors",
    [fill(KVCache(), 5, 5), fill(RotatingKVCache(max_size=4), 5, 2), fill(KVCache(), 5, 3)],
    {"model": "test/model"},
)
save_prompt_cache("mlx_keep.safetensors", [fill(RotatingKVCache(max_size=4, keep=1), 6, 2)])
quantized = QuantizedKVCache(group_size=32, bits=8)
quantized.update_and_fetch(mx.zeros((1, 2, 5, 32), mx.float16), mx.zeros((1, 2, 5, 32), mx.float16))
save_prompt_cache("mlx_quant.safetensors", [quantized])
