#!/usr/bin/env python3
"""Puts the smaller seeds of h2o's HTTP/1 fuzz corpus into one file.

    tests/tools/make_h2o_seeds.py H2O/fuzz/http1-corpus MAX_BYTES > tests/data/h2o/seeds.json

An array of strings, one character per byte, of the seeds of at most MAX_BYTES, in the order of their names."""
import json
import sys
from pathlib import Path

limit = int(sys.argv[2])
seeds = [p.read_bytes() for p in sorted(Path(sys.argv[1]).iterdir()) if p.stat().st_size <= limit]
print("[\n" + ",\n".join(json.dumps(s.decode("latin-1")) for s in seeds if s) + "\n]")
