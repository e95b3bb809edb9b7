"""One router, two models: names, aliases, which workers a request goes to, and what is left when one is gone."""
import json
import subprocess
import urllib.error
import urllib.request

import openai
import pytest

from conftest import BIN, TINY, Cluster, wait_for


class Pair:
    """Two clusters of different models, and a router over the workers of both."""

    def __init__(self, dir):
        self.dir, self.clusters, self.process = dir, {}, None
        for name, model in (("alpha", TINY / "llama"), ("beta", TINY / "qwen3")):
            self.clusters[name] = Cluster(model=model, sets=(f"model_name={name}",))

    def listen(self, kind):
        return ", ".join(line.split()[1] for c in self.clusters.values()
                         for line in open(f"{c.state}/cluster") if line.startswith(kind))

    def start(self):
        for c in self.clusters.values():
            c.start()
        (self.dir / "beta.conf").write_text(f"model = {TINY}/qwen3\nmodel_name = beta\nmodel_aliases = small, gpt-4o\n"
                                            "context_length = 300\n")
        (self.dir / "routerd.conf").write_text(
            f"listen = 127.0.0.1:0\nadmin_listen =\nmodel = {TINY}/llama\nmodel_name = alpha\nmodels = {self.dir}/beta.conf\n"
            f"worker_wait_ms = 1s\nprefill = {self.listen('prefilld')}\ndecode = {self.listen('decoded')}\n")
        self.log = self.dir / "log"
        self.process = subprocess.Popen([BIN / "routerd", "-c", self.dir / "routerd.conf"], stderr=open(self.log, "wb"))
        wait_for(lambda: "http://" in self.log.read_text(), 30)
        self.url = "http://" + self.log.read_text().split("http://")[1].split(",")[0]
        wait_for(lambda: self.get("/ready") == (200, {"status": "ready"}), 30)
        return self

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(30)
        for c in self.clusters.values():
            c.stop()

    def get(self, path, body=None):
        req = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(req, timeout=60) as r:
                return r.status, json.loads(r.read())
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read())


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    p = Pair(tmp_path_factory.mktemp("models"))
    try:
        yield p.start()
    finally:
        p.stop()


BODY = {"prompt": [5, 6, 7, 8], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def test_each_model_answers_as_alone(pair):
    alone = {name: c.post("/v1/completions", BODY)[1]["choices"][0]["token_ids"] for name, c in pair.clusters.items()}
    assert alone["alpha"] != alone["beta"]
    for asked, name in ((None, "alpha"), ("alpha", "alpha"), ("beta", "beta"), ("small", "beta"), ("gpt-4o", "beta")):
        for _ in range(3):
            s, r = pair.get("/v1/completions", {**BODY, "model": asked})
            assert s == 200 and r["model"] == name and r["choices"][0]["token_ids"] == alone[name], asked
    s, r = pair.get("/v1/chat/completions", {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
    assert s == 200 and r["model"] == "beta"


def test_names(pair):
    s, r = pair.get("/v1/models")
    assert [(m["id"], m.get("root")) for m in r["data"]] == [("alpha", None), ("beta", None), ("small", "beta"), ("gpt-4o", "beta")]
    assert {m["id"]: m["max_model_len"] for m in r["data"]}.keys() == {"alpha", "beta", "small", "gpt-4o"}
    with openai.OpenAI(base_url=pair.url + "/v1", api_key="x", max_retries=0) as c:
        assert c.models.retrieve("gpt-4o").id == "gpt-4o"
    for s, r in (pair.get("/v1/completions", {**BODY, "model": "gamma"}), pair.get("/v1/models/gamma"),
                 pair.get("/v1/chat/completions", {"model": "Alpha", "messages": [{"role": "user", "content": "x"}]})):
        assert s == 404 and r["error"]["code"] == "model_not_found" and r["error"]["param"] == "model"
        assert "'alpha', 'beta', 'small', 'gpt-4o'" in r["error"]["message"]


def test_limits_of_each(pair):
    """Vocabulary and context are those of the model that was asked for."""
    sizes = {"alpha": 301, "beta": 307}
    for name, size in sizes.items():
        s, r = pair.get("/v1/completions", {**BODY, "model": name, "prompt": [size]})
        assert s == 400 and f"0 to {size - 1}" in r["error"]["message"]
    assert pair.get("/v1/completions", {**BODY, "model": "alpha", "prompt": [9] * 400})[0] == 200
    s, r = pair.get("/v1/completions", {**BODY, "model": "beta", "prompt": [9] * 400})
    assert s == 400 and r["error"]["code"] == "context_length_exceeded" and "300" in r["error"]["message"]


def test_one_model_without_workers(pair):
    """The other one goes on; requests for the first get 503, not the wrong model."""
    beta = pair.clusters["beta"]
    beta.local("stop", "decoded-1")
    try:
        s, r = wait_for(lambda: (got := pair.get("/ready")) and "reason" in got[1] and got, 20)
        assert s == 200 and r["reason"].startswith("beta: ")
        assert pair.get("/v1/completions", {**BODY, "model": "alpha"})[0] == 200
        assert pair.get("/v1/completions", {**BODY, "model": "beta"})[0] == 503
    finally:
        beta.local("start", "decoded-1")
    wait_for(lambda: pair.get("/ready")[1] == {"status": "ready"}, 20)
    assert pair.get("/v1/completions", {**BODY, "model": "beta"})[0] == 200


@pytest.mark.parametrize("more,why", [
    (f"model = {TINY}/qwen3\nmodel_name = alpha\n", "two models are called 'alpha'"),
    (f"model = {TINY}/qwen3\nmodel_aliases = x, alpha\n", "two models are called 'alpha'"),
    ("model_name = x\n", "no model: set model"), ("model = /nowhere\n", "/nowhere"), ("listen = 1\n", "listen"),
    (f"model = {TINY}/qwen3\ntool_format = what\n", "no such format")])
def test_bad_files(tmp_path, more, why):
    (tmp_path / "more.conf").write_text(more)
    (tmp_path / "r.conf").write_text(f"listen = 127.0.0.1:0\nadmin_listen =\nmodel = {TINY}/llama\nmodel_name = alpha\n"
                                     f"models = {tmp_path}/more.conf\n")
    p = subprocess.run([BIN / "routerd", "-c", tmp_path / "r.conf"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and why in p.stderr, p.stderr


def test_worker_of_no_known_model(pair, tmp_path):
    """A router with two models takes no worker that announces a third."""
    for n in "xy":
        (tmp_path / f"{n}.conf").write_text(f"model = {TINY}/llama\nmodel_name = {n}\n")
    (tmp_path / "r.conf").write_text(f"listen = 127.0.0.1:0\nadmin_listen =\nmodels = {tmp_path}/x.conf, {tmp_path}/y.conf\n"
                                     f"prefill = {pair.listen('prefilld')}\ndecode = {pair.listen('decoded')}\n")
    p = subprocess.Popen([BIN / "routerd", "-c", tmp_path / "r.conf"], stderr=open(tmp_path / "log", "wb"))
    try:
        wait_for(lambda: "'alpha', which is no model of this router" in (tmp_path / "log").read_text(), 20)
        wait_for(lambda: "'beta', which is no model of this router" in (tmp_path / "log").read_text(), 20)
    finally:
        p.terminate()
        p.wait(20)
