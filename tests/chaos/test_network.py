"""Networks that fail, in namespaces: see network.py."""
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from notes import note

from conftest import BIN


def namespaces():
    """Whether this process may make network namespaces with what the test needs."""
    need = ("ip link add b0 type bridge && ip link add v0 type veth peer name v1 && tc qdisc add dev v0 clsact && "
            "tc filter add dev v0 egress bpf da bytecode '1,6 0 0 2' && tc qdisc add dev v0 root tbf rate 1mbit "
            "burst 16k latency 1s")
    return subprocess.run(["unshare", "-n", "-m", "sh", "-c", need], capture_output=True).returncode == 0


@pytest.mark.long
def test_networks_that_fail():
    if not namespaces():
        print("SKIP network faults: no network namespaces here (they need root and tc)")
        pytest.skip("no network namespaces")
    seed = random.randrange(1 << 30)
    p = subprocess.run(["unshare", "-n", "-m", sys.executable, Path(__file__).with_name("network.py"), "3", str(seed)],
                       env=dict(os.environ, BATON_BIN=str(BIN)), capture_output=True, text=True, timeout=3600)
    assert p.returncode == 0, p.stdout + p.stderr
    note(p.stdout.splitlines()[-1])
