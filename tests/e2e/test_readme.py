"""The commands of the README, run as they stand there, but for the port."""
import json
import re
import subprocess

import pytest

from conftest import ROOT, SLOW


def commands():
    """The curl commands in the README's blocks of shell code, each with all its lines."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    return [c for b in blocks for c in re.findall(r"^curl .*?(?<!\\)(?:'$|$)(?:\n(?!curl|make).*)*", b, re.M)]


def test_there_are_some():
    assert commands()


@pytest.mark.parametrize("command", commands())
def test_curl(solo, command):
    command = command.replace("127.0.0.1:8080", f"127.0.0.1:{solo.port}")
    assert str(solo.port) in command
    p = subprocess.run(["bash", "-c", command.replace("curl ", "curl -sS --fail-with-body --noproxy '*' ", 1)],
                       capture_output=True, text=True, timeout=120 * SLOW)
    assert p.returncode == 0, p.stdout + p.stderr
    if "data: " not in p.stdout:
        json.loads(p.stdout)
        return
    events = [line[6:] for line in p.stdout.splitlines() if line.startswith("data: ")]
    text = "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events[:-1])
    assert events[-1] == "[DONE]" and text == "The capital of Japan is Tokyo."
