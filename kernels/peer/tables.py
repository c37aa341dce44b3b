#!/usr/bin/env python3
"""The tables of docs/benchmarks.md from runs of kvq bench and of compare.py.

    kvq bench --time 300ms --format json -o avx512.json
    kvq bench --time 300ms --isa avx2 --format json -o avx2.json
    python3 kernels/peer/compare.py --kvq ./kvq > ggml.md
    kvq bench --time 300ms --kernel encode --scheme int8-token,int4-token/64,int8-channel:int8-token --format json -o encode.json
    python3 kernels/peer/tables.py avx512.json avx2.json ggml.md encode.json

Prints the rows of each run and, between them, what is demanded beside what was measured.
The last one or two files may be left out. A demand on the share of the read bandwidth holds where two
threads read at most 36 GB/s: there both are on one core complex.
"""
import json
import sys

F16, INT8, INT4 = "f16", "int8-channel:int8-token", "int4-channel:int4-token"
MIXED, TOKEN, GROUPED = "int8-channel:int4-token", "int8-token/64:int8-token", "int4-channel/128:int4-token/64"
SHARE = {F16: 0.85, INT8: 0.85, TOKEN: 0.85, MIXED: 0.75, INT4: 0.53, GROUPED: 0.47}
SPEEDUP = {INT8: 1.8, MIXED: 1.8, INT4: 1.9, GROUPED: 1.55}
CYCLES = {
    "avx512": {F16: 12, INT8: 11.5, MIXED: 16, INT4: 23.5},
    "avx2": {F16: 11, INT8: 17, MIXED: 23, INT4: 35},
}
GGML = {F16: 4, INT8: 8, "int8-token/64": 8, MIXED: 20, INT4: 18, GROUPED: 18}
ENCODE = [
    ("rows, int8-token", "int8-token", "encode", 0.70),
    ("rows, int4-token/64", "int4-token/64", "encode", 0.75),
    ("pages of V, int8-token", INT8, "encode-v", 0.60),
    ("pages of K, int8-channel, both passes", INT8, "encode-k", 0.48),
    ("pages of K, int8-channel, scales given", INT8, "encode-k-frozen", 0.48),
]
CAP, MOST_READ = 0.80, 36


def main():
    runs = []
    for path in sys.argv[1:3]:
        with open(path, encoding="utf-8") as f:
            runs.append(json.load(f))
    if len(runs) != 2:
        sys.exit(__doc__)
    rows(runs[0])
    targets(runs)
    if len(sys.argv) > 3:
        beside(sys.argv[3])
    if len(sys.argv) > 4:
        encoding(sys.argv[4])
    print()
    rows(runs[1])
    for run in runs:
        for warning in run["warnings"]:
            print(f"{run['cpu']['isa']}: {warning}")


def decode(run):
    """The rows that something is demanded of: the run has e4m3-raw too."""
    return [r for r in run["rows"] if r["kernel"] == "decode" and r["level"] == "dram" and r["scheme"].startswith(("f16", "int"))]


def rows(run):
    """The rows of a run from memory."""
    print("| scheme | threads | us | quartiles | GB/s | read GB/s | cycles/line | roofline | cap | × f16 |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for r in decode(run):
        print(f"| {r['scheme']} | {r['threads']} | {r['us_per_token']:,.0f} | {r['us_per_token_q1']:,.0f}–{r['us_per_token_q3']:,.0f} |"
              f" {r['gb_s']:.1f} | {r['read_gb_s']:.1f} | {r['cycles_per_line']:.1f} | {r['roofline']:.2f} | {r['cap_share']:.2f} | {r['speedup_vs_f16']:.2f} |")
    print()


def targets(runs):
    """Demand and measured, side by side."""
    print("| demand | | measured |\n| --- | --- | --- |")
    best = {(r["scheme"], r["threads"]): r for r in decode(runs[0])}
    for scheme, least in SHARE.items():
        r = best[scheme, 2]
        if r["read_gb_s"] > MOST_READ:
            line(f"share of the read bandwidth, 2 threads: {scheme}", f"≥ {least}", f"{r['roofline']:.2f} of {r['read_gb_s']:.0f} GB/s: no demand")
        else:
            line(f"share of the read bandwidth, 2 threads: {scheme}", f"≥ {least}", mark(r["roofline"], least))
    for scheme, least in SPEEDUP.items():
        both(f"time against f16, 1 / 2 threads: {scheme}", least, [best[scheme, n]["speedup_vs_f16"] for n in (1, 2)])
    for run in runs:
        fused = {(r["scheme"], r["threads"]): r for r in decode(run)}
        for scheme in dict.fromkeys(s for s, _ in fused):
            both(f"share of the cap, {run['cpu']['isa']}, 1 / 2 threads: {scheme}", CAP, [fused[scheme, n]["cap_share"] for n in (1, 2)])
    for run in runs:
        isa = run["cpu"]["isa"]
        for scheme, most in CYCLES[isa].items():
            got = next(r["cycles_per_line"] for r in decode(run) if r["scheme"] == scheme)
            line(f"cycles for 64 bytes in L2, {isa}: {scheme}", f"≤ {most}", mark(got, most, 1))


def beside(path):
    """The demands on the time against ggml, from compare.py's table."""
    ratios = {}
    with open(path, encoding="utf-8") as f:
        for cells in (row.split("|") for row in f):
            if len(cells) > 6 and cells[1].strip() in GGML:
                ratios.setdefault(cells[1].strip(), []).append(float(cells[6]))
    for scheme, got in ratios.items():
        both(f"time against ggml, 1 / 2 threads: {scheme}", GGML[scheme], got)


def encoding(path):
    """The demands on encoding, with what two threads could read: they stand wherever that is."""
    with open(path, encoding="utf-8") as f:
        found = {(r["scheme"], r["kernel"]): r for r in json.load(f)["rows"] if r["threads"] == 2}
    for what, scheme, kernel, least in ENCODE:
        r = found[scheme, kernel]
        line(f"encoding, share of the read bandwidth, 2 threads: {what}", f"≥ {least}", f"{mark(r['roofline'], least)}, of {r['read_gb_s']:.0f} GB/s")


def both(what, least, got):
    line(what, f"≥ {least:.2f}", " / ".join(mark(x, least) for x in got))


def mark(value, bound, digits=2):
    """The figure as shown, and whether it misses its bound: a most for cycles, else a least."""
    shown = round(value, digits)
    missed = shown > bound if digits == 1 else shown < bound
    return f"{value:.{digits}f}" + (" (**missed**)" if missed else "")


def line(*cells):
    print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
