#!/usr/bin/env python3
"""Capture keys, values and queries of a Hugging Face model for kvq.

    python hf.py --model ID_OR_DIR --text FILE --layers 0,12,last -o dump.safetensors
    kvq eval --dump dump.safetensors

The model runs once over the text. Its own attention is called unchanged; on the
way in, K, V and some rows of Q are written as attention gets them: after RoPE
and any normalisation of queries and keys, latent attention (MLA) in its expanded
heads. The file is safetensors with the facts that attention needs (scale, window,
chunk, softcap, sinks, RoPE) as kvq.dump/1 under the metadata key "kvq".

--verify runs the model once more for each scheme, with K and V stored and read
back inside attention, and writes what that did to the logits to OUT.truth.tsv,
for `kvq eval --dump OUT --truth OUT.truth.tsv`.

Needs torch and transformers 5 (and gguf and accelerate for --gguf). One layer is in memory at a
time beside the model.
"""
import argparse
import contextlib
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.masking_utils import AttentionMaskInterface, eager_mask

ATTENTION = "kvq_capture"
ROWS = 512  # query rows of one call to the model's attention: bounds its memory
DTYPES = {"f16": (torch.float16, "F16"), "bf16": (torch.bfloat16, "BF16"), "f32": (torch.float32, "F32")}
# Rotary pairs are neighbouring channels here, halves of the head everywhere else.
INTERLEAVED = {"cohere", "cohere2", "cohere2_moe", "glm", "glm4", "gptj", "codegen", "ernie4_5", "ernie4_5_moe", "helium", "llama4_text"}
DEFAULT_SCHEMES = (
    "int8-token:exact,int8-channel:exact,int8-tensor:exact,int4-token:exact,int4-token/32:exact,int4-channel:exact,"
    "int4-channel/32:exact,int4-asym-token/32:exact,int4-asym-channel/32:exact,int3-asym-channel/32:exact,"
    "int2-asym-channel/32:exact,int4-token+center:exact,exact:int8-token,exact:int4-token,exact:int4-token/32,"
    "exact:int4-channel/32,exact:int3-asym-token/32,exact:int2-asym-token/32,int8-channel:int8-token,"
    "int8-channel:int4-token/32,int4-asym-channel/32:int4-asym-token/32,int4-token:int4-token,"
    "int2-asym-channel/32:int2-asym-token/32"
)


class Refused(Exception):
    """What cannot be captured, and what to do."""


def main(argv=None):
    args = parse(argv)
    try:
        capture(args)
    except Refused as e:
        print(f"hf.py: {e}", file=sys.stderr)
        return 1
    return 0


def parse(argv):
    p = argparse.ArgumentParser(description="Capture keys, values and queries of a Hugging Face model for kvq.")
    p.add_argument("--model", required=True, help="model id or directory")
    p.add_argument("--gguf", help="GGUF file inside it, or anywhere with --model naming its directory")
    p.add_argument("--text", required=True, help="text file to run over")
    p.add_argument("--tokens", type=int, default=4096, help="tokens of the text to use (default 4096)")
    p.add_argument("--layers", default="all", help="0,12,last or all (default)")
    p.add_argument("--queries", type=int, default=256, help="query rows kept a head, evenly strided (default 256)")
    p.add_argument("--store", choices=DTYPES, default="f16", help="element type of the file (default f16)")
    p.add_argument("--dtype", choices=DTYPES, default="f32", help="element type the model runs in (default f32)")
    p.add_argument("--no-o", action="store_true", help="leave out the output projection and its weights")
    p.add_argument("--logits", action="store_true", help="as --verify with a list of common schemes")
    p.add_argument("--verify", metavar="SCHEMES", help="comma-separated pairs as kvq names them, K:V, to run end to end")
    p.add_argument("--kvq", default="kvq", help="kvq binary, for schemes that are not plain integers (default kvq)")
    p.add_argument("-o", "--output", required=True, help="safetensors file to write")
    args = p.parse_args(argv)
    if args.tokens < 1 or args.queries < 1:
        p.error("--tokens and --queries want 1 or more")
    if args.logits and not args.verify:
        args.verify = DEFAULT_SCHEMES
    return args


def load(args):
    """The model, its tokenizer and the token ids of the text, shape [1, S]."""
    options = {}
    directory = args.model
    if args.gguf:
        if not os.path.isdir(directory):
            directory = os.path.dirname(os.path.abspath(args.gguf))
        options["gguf_file"] = os.path.relpath(args.gguf, directory)
    tokenizer = AutoTokenizer.from_pretrained(directory, **options)
    register()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=DTYPES[args.dtype][0], attn_implementation=ATTENTION, **options)
    model.eval()
    with open(args.text, encoding="utf-8", errors="replace") as f:
        ids = tokenizer(f.read(), return_tensors="pt").input_ids[:, : args.tokens]
    if ids.shape[1] < 2:
        raise Refused(f"{args.text}: {ids.shape[1]} tokens of text: give a longer one")
    return model, ids


def capture(args):
    model, ids = load(args)
    layers = attention_modules(model)
    wanted = chosen(args.layers, layers)
    writer = Writer(args.output)
    session = Session(model, wanted, args, writer, ids.shape[1])
    try:
        with session.installed(), torch.no_grad():
            reference = model(input_ids=ids, use_cache=False).logits[0] if args.verify else model.model(input_ids=ids, use_cache=False)
        session.finish(args, ids)
        writer.close(session.facts)
    finally:
        writer.discard()
    print(f"{args.output}: {len(wanted)} layers, {ids.shape[1]} tokens", file=sys.stderr)
    if args.verify:
        verify(model, ids, reference, args)


def attention_modules(model):
    """The attention modules by layer number: those that carry a layer_idx and project an output."""
    found = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and hasattr(sys.modules[type(module).__module__], "eager_attention_forward") and "Attention" in type(module).__name__:
            found.setdefault(index, module)
    if not found:
        raise Refused(f"{type(model).__name__}: no attention module that goes through transformers' AttentionInterface: this class computes attention its own way")
    return found


def chosen(text, layers):
    """The layer numbers that --layers names."""
    if text == "all":
        return sorted(layers)
    numbers = []
    for part in text.split(","):
        number = max(layers) if part.strip() == "last" else int(part) if part.strip().isdigit() else None
        if number not in layers:
            raise Refused(f"--layers {part.strip()}: attention is on layers {', '.join(map(str, sorted(layers)))}")
        numbers.append(number)
    return sorted(set(numbers))


# The active Session, or None: transformers calls one function for every module.
active = None


def register():
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)


def attention(module, query, key, value, attention_mask, **kwargs):
    """Stands in for the model's eager attention, which it calls in blocks of query rows."""
    if active is not None:
        key, value = active.see(module, query, key, value, attention_mask, kwargs)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    outputs = []
    for start in range(0, query.shape[2], ROWS):
        rows = slice(start, start + ROWS)
        mask = None if attention_mask is None else attention_mask[:, :, rows]
        outputs.append(eager(module, query[:, :, rows], key, value, mask, **kwargs)[0])
    return torch.cat(outputs, dim=1), None


class Session:
    """One run of the model with its attention watched."""

    def __init__(self, model, wanted, args, writer, tokens):
        self.model, self.wanted, self.writer = model, set(wanted), writer
        self.dtype = DTYPES[args.store][0]
        count = min(args.queries, tokens)
        self.positions = torch.tensor([(i + 1) * tokens // count - 1 for i in range(count)])
        self.layers, self.blocks, self.energy, self.norms = {}, {}, {}, {}
        self.keep_o = not args.no_o

    @contextlib.contextmanager
    def installed(self):
        global active
        handles = [] if not self.keep_o else self.hook_blocks()
        active = self
        try:
            yield
        finally:
            active = None
            for handle in handles:
                handle.remove()

    def see(self, module, query, key, value, mask, kwargs):
        index = module.layer_idx
        if index in self.wanted:
            if query.shape[0] != 1:
                raise Refused("one sequence at a time")
            self.layers[index] = self.layer_facts(module, query, key, mask, kwargs)
            for name, tensor in (("k", key), ("v", value), ("q", query[:, :, self.positions])):
                self.writer.add(f"layers.{index}.{name}", self.narrow(index, name, tensor[0]))
        return key, value

    def narrow(self, layer, name, tensor):
        stored = tensor.to(self.dtype)
        if not torch.isfinite(stored).all():
            raise Refused(f"layer {layer} {name}: values up to {tensor.abs().max().item():.3g} do not fit {self.dtype}: use --store bf16")
        return stored

    def layer_facts(self, module, query, key, mask, kwargs):
        scale = kwargs.get("scaling")
        facts = {"scale": float(scale if scale is not None else query.shape[-1] ** -0.5)}
        facts.update(visible(module.layer_idx, mask, query.shape[2], key.shape[2], self.positions))
        softcap = kwargs.get("softcap") or getattr(module, "attn_logit_softcapping", None)
        if softcap:
            facts["softcap"] = float(softcap)
        sinks = kwargs.get("s_aux", getattr(module, "sinks", None))
        if sinks is not None:
            facts["sinks"] = [float(s) for s in sinks.detach().flatten()]
        rope = rope_facts(self.model.config, module)
        if rope:
            facts["rope"] = rope
        return facts

    def hook_blocks(self):
        """Watches the residual stream entering and leaving the block of each wanted layer."""
        handles = []
        for block in self.model.modules():
            for child in block.children():
                index = getattr(child, "layer_idx", None)
                if index in self.wanted and child is attention_modules(self.model)[index]:
                    self.blocks[index] = (block, child)
                    handles.append(block.register_forward_hook(self.watch(index), with_kwargs=True))
                    projection = output_projection(child)
                    if projection is not None and output_norm(block) is not None:
                        handles.append(projection.register_forward_hook(self.watch_projection(index)))
        return handles

    def watch(self, index):
        def hook(block, inputs, kwargs, output):
            entering = inputs[0] if inputs else kwargs["hidden_states"]
            leaving = output[0] if isinstance(output, tuple) else output
            rows = [t[0, self.positions].double().square().sum(-1) for t in (entering, leaving)]
            self.energy[index] = rows[0] + rows[1]

        return hook

    def watch_projection(self, index):
        def hook(module, inputs, output):
            self.norms[index] = output[0, self.positions].double().square().mean(-1)

        return hook

    def finish(self, args, ids):
        """Writes what belongs to every layer, and gathers the facts."""
        missing = self.wanted - set(self.layers)
        if missing:
            raise Refused(f"layers {sorted(missing)} never called attention: they read another layer's cache or hold none")
        for index in sorted(self.layers):
            self.writer.add(f"layers.{index}.q_positions", self.positions.to(torch.int64))
            if self.keep_o:
                self.write_o(index)
        config = self.model.config
        self.facts = {
            "schema": "kvq.dump/1",
            "model": getattr(config, "_name_or_path", "") or args.model,
            "source": f"transformers, {args.dtype} forward, {ids.shape[1]} tokens of {os.path.basename(args.text)}",
            "rope_applied": True,
            "defaults": {"causal": True},
            "layers": {str(i): self.layers[i] for i in sorted(self.layers)},
        }

    def write_o(self, index):
        """o: what turns a head's error into the residual stream's; o_weight: one over the stream's energy."""
        block, module = self.blocks.get(index, (None, None))
        projection = output_projection(module) if module is not None else None
        if projection is None or index not in self.energy:
            print(f"hf.py: layer {index}: no output projection found: o is left out", file=sys.stderr)
            return
        o = projection.weight.detach().float()
        if type(projection).__name__ == "Conv1D":  # GPT-2 keeps it transposed
            o = o.T
        weight = 1 / self.energy[index]
        norm = output_norm(block)
        if norm is not None:
            # A root-mean-square norm of ones is its gain.
            o = o * norm(torch.ones(1, 1, o.shape[0], dtype=next(norm.parameters()).dtype))[0, 0].detach().float()[:, None]
            eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0))
            weight = weight / (self.norms[index] + eps)
        self.writer.add(f"layers.{index}.o", o.to(torch.float16))
        self.writer.add(f"layers.{index}.o_weight", weight.float())


def output_projection(module):
    for name in ("o_proj", "out_proj", "dense", "c_proj", "wo"):
        if hasattr(getattr(module, name, None), "weight"):
            return getattr(module, name)
    return None


def output_norm(block):
    """The norm between the output projection and the residual stream, where the model has one (Gemma 2 and later, OLMo 2 and 3)."""
    if hasattr(block, "post_feedforward_layernorm"):
        return getattr(block, "post_attention_layernorm", None)
    return None


def visible(layer, mask, queries, keys, positions):
    """Window or chunk of a layer, read off the mask it was called with, and checked on every captured row."""
    t = torch.arange(keys)
    offset = keys - queries
    allowed = []
    for p in positions.tolist():
        row = t <= p + offset if mask is None else (mask[0, 0, p, :keys] if mask.dtype == torch.bool else mask[0, 0, p, :keys] > -1e4)
        allowed.append(row)
    lowest = [int(row.nonzero()[0]) for row in allowed]
    facts = {}
    if any(lowest):
        spans = {p + offset - low + 1 for p, low in zip(positions.tolist(), lowest) if low > 0}
        if len(spans) == 1:
            facts["window"] = spans.pop()
        else:
            facts["chunk"] = math.gcd(*[low for low in lowest if low > 0])
    for p, row in zip(positions.tolist(), allowed):
        at = p + offset
        want = t <= at
        if "window" in facts:
            want &= t > at - facts["window"]
        if "chunk" in facts:
            want &= t // facts["chunk"] == at // facts["chunk"]
        if not torch.equal(row, want):
            raise Refused(f"layer {layer}: the mask of position {at} is neither causal, a sliding window nor chunks: kvq has no words for it")
    return facts


def rope_facts(config, module):
    """theta, style, rotated channels and scaling keys, as far as the configuration names them."""
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = getattr(config, "layer_types", None)
    if kinds and module.layer_idx < len(kinds) and kinds[module.layer_idx] in rope:
        rope = rope[kinds[module.layer_idx]]
    if not isinstance(rope, dict) or "rope_theta" not in rope or getattr(module, "use_rope", True) is False:
        return None
    facts = {"theta": float(rope["rope_theta"]), "style": "interleaved" if config.model_type in INTERLEAVED else "half"}
    factor = rope.get("partial_rotary_factor", 1.0)
    if factor != 1.0:
        facts["dims"] = int(module.head_dim * factor)
    for key, value in rope.items():
        if key not in ("rope_theta", "partial_rotary_factor") and isinstance(value, (int, float, str)) and value != "default":
            facts[key] = value
    return facts


class Writer:
    """A safetensors file whose header is written last: tensors go to a temporary file as they come."""

    def __init__(self, path):
        self.path, self.header, self.size = path, {}, 0
        folder = os.path.dirname(os.path.abspath(path))
        self.data = tempfile.NamedTemporaryFile(dir=folder, prefix=".kvq-", delete=False)

    def add(self, name, tensor):
        kinds = {kind: name for kind, name in DTYPES.values()} | {torch.int64: "I64"}
        tensor = tensor.detach().cpu().contiguous()
        raw = tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        self.header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [self.size, self.size + len(raw)]}
        self.data.write(raw)
        self.size += len(raw)

    def close(self, facts):
        header = json.dumps({"__metadata__": {"kvq": json.dumps(facts)}, **self.header}).encode()
        header += b" " * (-len(header) % 8)
        self.data.flush()
        out = tempfile.NamedTemporaryFile(dir=os.path.dirname(self.data.name), prefix=".kvq-", delete=False)
        try:
            umask = os.umask(0)  # temporary files are private; the result is an ordinary file
            os.umask(umask)
            os.chmod(out.name, 0o666 & ~umask)
            with out, open(self.data.name, "rb") as data:
                out.write(struct.pack("<Q", len(header)) + header)
                shutil.copyfileobj(data, out, 1 << 22)
            os.replace(out.name, self.path)
        except BaseException:
            os.unlink(out.name)
            raise

    def discard(self):
        self.data.close()
        if os.path.exists(self.data.name):
            os.unlink(self.data.name)


# The end-to-end check.


class Stored:
    """Stands in for a Session: attention sees K and V as a scheme gives them back."""

    def __init__(self, pair, kvq):
        sides = pair.split(":")
        if len(sides) > 2:
            raise Refused(f"scheme {pair}: want K:V")
        self.k, self.v = (side_codec(s, kvq) for s in (sides * 2)[:2])

    def see(self, module, query, key, value, mask, kwargs):
        return self.k(key), self.v(value)


INTEGER = re.compile(r"^int(\d)(?:-(asym))?-(tensor|head|token|channel)(?:/(\d+))?(\+center)?$")


def side_codec(name, kvq):
    if name == "exact":
        return lambda x: x
    match = INTEGER.match(name)
    if match is None:
        return lambda x: through_kvq(x, name, kvq)
    bits, asym, share, group, center = match.groups()
    return lambda x: integer_codec(x, int(bits), bool(asym), share, int(group or 0), bool(center))


def integer_codec(x, bits, asym, share, group, center):
    """kvq's integer codecs: float32, true division, ties to even, scale and offset stored as f16. x is [1, heads, tokens, d]."""
    kind, x = x.dtype, x[0].float()
    mean = x.double().mean(1, keepdim=True).float() if center else 0.0
    x = x - mean
    heads, tokens, dim = x.shape
    if share == "tensor":
        parts = [x.reshape(1, -1)]
    elif share == "head":
        parts = [x.reshape(heads, -1)]
    elif share == "token":
        parts = list(x.split(group or dim, dim=2))
    else:
        parts = list(x.transpose(1, 2).split(group or tokens, dim=2))
    parts = [stored_integers(p, bits, asym) for p in parts]
    if share in ("tensor", "head"):
        y = parts[0].reshape(heads, tokens, dim)
    else:
        y = torch.cat(parts, dim=2)
        if share == "channel":
            y = y.transpose(1, 2)
    return (y + mean)[None].to(kind)


def stored_integers(x, bits, asym):
    """One scale for each last axis of x."""
    smallest = torch.tensor(2.0**-24)
    if asym:
        offset, top = x.amin(-1, keepdim=True), 2**bits - 1
        extent = x.amax(-1, keepdim=True) - offset
        offset = offset.half().float()
        low = 0
    else:
        extent, offset, top = x.abs().amax(-1, keepdim=True), 0.0, 2 ** (bits - 1) - 1
        low = -top
    scale = (extent / top).half().float()
    scale = torch.where((scale == 0) & (extent > 0), smallest, scale)
    codes = torch.where(scale > 0, torch.round((x - offset) / scale), torch.zeros(())).clamp(low, top)
    return scale * codes + offset


def through_kvq(x, name, kvq):
    """Any other scheme: kvq encode writes the values it gives back."""
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.npy")
        numpy.save(path, x[0].float().cpu().numpy())
        run = subprocess.run([kvq, "encode", path, "--scheme", name, "-o", folder], capture_output=True, text=True)
        if run.returncode != 0:
            raise Refused(f"scheme {name}: {run.stderr.strip() or run.stdout.strip()}")
        out = [f for f in os.listdir(folder) if f.endswith(".dequant.npy")]
        return torch.from_numpy(numpy.load(os.path.join(folder, out[0])).reshape(x.shape)).to(x.dtype)


def verify(model, ids, reference, args):
    """Logit KL, changed top-1 tokens and the perplexity ratio of each scheme, against the plain run."""
    global active
    path = args.output + ".truth.tsv"
    reference = torch.log_softmax(reference.double(), -1)
    loss = -reference[:-1].gather(1, ids[0, 1:, None]).mean()
    rows = ["pair\tlogit_kl_mean\tlogit_kl_p99\ttop1_flip_rate\tperplexity_ratio"]
    for pair in filter(None, (s.strip() for s in args.verify.split(","))):
        active = Stored(pair, args.kvq)
        try:
            with torch.no_grad():
                logits = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].double(), -1)
        finally:
            active = None
        kl = (reference.exp() * (reference - logits)).sum(-1)
        flips = (reference.argmax(-1) != logits.argmax(-1)).double().mean()
        ratio = torch.exp(-logits[:-1].gather(1, ids[0, 1:, None]).mean() - loss)
        rows.append(f"{pair}\t{kl.mean():.6g}\t{torch.quantile(kl, 0.99):.6g}\t{flips:.6g}\t{ratio:.6g}")
        print(rows[-1].replace("\t", "  "), file=sys.stderr, flush=True)
    with open(path + ".part", "w", encoding="utf-8") as f:
        f.write("\n".join(rows) + "\n")
    os.replace(path + ".part", path)
    print(path, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
