#!/usr/bin/env python3
"""Decode attention of kvq beside ggml's flash attention: same shapes, same threads, alternating.

    python3 kernels/peer/compare.py --kvq ./kvq

Fetches the source distribution of llama-cpp-python with pip, builds its ggml as
shared libraries with the host's C compiler and cmake, and runs both programs in
turn. Nothing else may run on the machine meanwhile. ggml is built for AVX-512 with
VNNI when the CPU has them, without -march=native and without AMX.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile

VERSION = "0.3.36"
HERE = os.path.dirname(os.path.abspath(__file__))
# kvq's scheme and the ggml types nearest to it in bits.
PAIRS = [
    ("f16", "f16", "f16"),
    ("int8-channel:int8-token", "q8_0", "q8_0"),
    ("int8-token/64", "q8_0", "q8_0"),
    ("int8-channel:int4-token", "q8_0", "q4_0"),
    ("int4-channel:int4-token", "q4_0", "q4_0"),
    ("int4-channel/128:int4-token/64", "q4_0", "q4_0"),
]


def main():
    p = argparse.ArgumentParser(description="Time kvq's decode attention beside ggml's.")
    p.add_argument("--kvq", default="kvq", help="kvq binary")
    p.add_argument("--work", default=".cache/peer", help="where ggml is fetched and built")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--rounds", type=int, default=5, help="turns of each program; the medians of their medians are shown")
    p.add_argument("--seconds", type=float, default=2, help="of one turn")
    p.add_argument("--ctx", type=int, default=32768)
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--working-set", type=int, default=1024, help="MiB that ggml's cache is repeated to")
    args = p.parse_args()
    program, libraries = build(os.path.abspath(args.work))
    print("| scheme | ggml K, V | threads | kvq ms | ggml ms | ratio |\n| --- | --- | ---: | ---: | ---: | ---: |")
    for threads in args.threads.split(","):
        for scheme, k, v in PAIRS:
            ours, theirs = [], []
            for _ in range(args.rounds):
                ours.append(kvq(args, scheme, threads))
                theirs.append(ggml(args, program, libraries, k, v, threads))
            a, b = statistics.median(ours), statistics.median(theirs)
            ratio = statistics.median(y / x for x, y in zip(ours, theirs))
            print(f"| {scheme} | {k}, {v} | {threads} | {a:.2f} | {b:.2f} | {ratio:.1f} |", flush=True)


def build(work):
    """The harness and the folder of ggml's libraries, built on the first call."""
    os.makedirs(work, exist_ok=True)
    source = os.path.join(work, f"llama_cpp_python-{VERSION}")
    if not os.path.isdir(source):
        subprocess.check_call([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python",
                               f"llama-cpp-python=={VERSION}", "-d", work], stdout=sys.stderr)
        with tarfile.open(os.path.join(work, f"llama_cpp_python-{VERSION}.tar.gz")) as archive:
            archive.extractall(work, filter="data")
    llama = os.path.join(source, "vendor", "llama.cpp")
    out = os.path.join(work, "build")
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        flags = set(f.read().split())
    wide = "ON" if {"avx512f", "avx512vl", "avx512bw", "avx512_vnni", "avx512vbmi"} <= flags else "OFF"
    options = dict(CMAKE_BUILD_TYPE="Release", BUILD_SHARED_LIBS="ON", LLAMA_BUILD_COMMON="OFF", LLAMA_BUILD_TESTS="OFF", LLAMA_BUILD_TOOLS="OFF",
                   LLAMA_BUILD_EXAMPLES="OFF", LLAMA_BUILD_SERVER="OFF", GGML_NATIVE="OFF", GGML_OPENMP="OFF",
                   GGML_SSE42="ON", GGML_AVX="ON", GGML_AVX2="ON", GGML_BMI2="ON", GGML_FMA="ON", GGML_F16C="ON",
                   GGML_AVX512=wide, GGML_AVX512_VBMI=wide, GGML_AVX512_VNNI=wide,
                   GGML_AMX_TILE="OFF", GGML_AMX_INT8="OFF", GGML_AMX_BF16="OFF")
    subprocess.check_call(["cmake", "-S", llama, "-B", out] + [f"-D{k}={v}" for k, v in options.items()], stdout=sys.stderr)
    subprocess.check_call(["cmake", "--build", out, "--target", "ggml", "-j", str(os.cpu_count())], stdout=sys.stderr)
    program = os.path.join(work, "ggml_attention")
    libraries = os.path.join(out, "bin")
    subprocess.check_call(["cc", "-O2", os.path.join(HERE, "ggml_attention.c"), "-I", os.path.join(llama, "ggml", "include"),
                           "-L", libraries, "-lggml", "-lggml-cpu", "-lggml-base", "-lm", "-o", program], stdout=sys.stderr)
    return program, libraries


def kvq(args, scheme, threads):
    """Milliseconds a token of kvq."""
    run = [args.kvq, "bench", "--scheme", scheme, "--threads", threads, "--ctx", str(args.ctx), "--heads", str(args.heads),
           "--kv-heads", str(args.kv_heads), "--head-dim", str(args.head_dim), "--time", f"{args.seconds}s", "--format", "json"]
    report = json.loads(subprocess.check_output(run, stderr=subprocess.DEVNULL))
    row = next(r for r in report["rows"] if r["kernel"] == "decode" and r["scheme"] == scheme)
    return row["us_per_token"] / 1e3


def ggml(args, program, libraries, k, v, threads):
    """Milliseconds a token of ggml."""
    run = [program, k, v, threads, str(args.seconds), str(args.ctx), str(args.kv_heads), str(args.heads), str(args.head_dim), str(args.working_set)]
    return json.loads(subprocess.check_output(run, env={**os.environ, "LD_LIBRARY_PATH": libraries}))["ms"]


if __name__ == "__main__":
    main()
