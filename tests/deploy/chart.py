"""What must hold of the chart, checked on what helm renders of every example: python chart.py HELM VALIDATE CHART.

Kinds that Kubernetes itself does not have are checked against the small schemas in schemas/; any other
word of kubernetes-validate is a failure."""
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import yaml

HELM, VALIDATE, CHART = sys.argv[1:4]
HERE = Path(__file__).resolve().parent
VERSIONS = ("1.30", "1.37")
results = {"passed": 0, "failed": 0}


def check(name, ok, why=""):
    results["passed" if ok else "failed"] += 1
    if not ok:
        print(f"{name}: {why}")


def run(*args):
    p = subprocess.run(args, capture_output=True, text=True)
    return p.returncode, p.stdout, p.stderr


def render(*args):
    rc, out, err = run(HELM, "template", "t", CHART, *args)
    return rc, out, err, [d for d in yaml.safe_load_all(out) if d] if rc == 0 else []


def pods(docs):
    """(kind/name, component, pod spec, labels) of everything that makes pods."""
    for d in docs:
        name = f"{d['kind']}/{d['metadata']['name']}"
        if d["kind"] in ("Deployment", "StatefulSet"):
            t = d["spec"]["template"]
        elif d["kind"] == "LeaderWorkerSet":
            t = d["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        elif d["kind"] == "Pod":
            yield name, "test", d["spec"], d["metadata"]["labels"]
            continue
        else:
            continue
        labels = t["metadata"]["labels"]
        yield name, labels["app.kubernetes.io/component"], t["spec"], labels


def seconds(text):
    n, unit = re.fullmatch(r"(\d+)(ms|s|m)?", text).groups()
    return int(n) * {"s": 1, "m": 60, "ms": 0.001, None: 0.001}[unit]


def drain_of(docs, component):
    for d in docs:
        if d["kind"] == "ConfigMap" and d["metadata"]["name"].endswith(f"-{component}"):
            conf = next(iter(d["data"].values()))
            return seconds(re.search(r"(?m)^drain_ms = (\S+)", conf)[1])
    raise AssertionError(f"no configuration of {component}")


def selects(selector, labels):
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and \
        all(e["operator"] == "In" and labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", []))


def apart(pod, labels):
    """How strictly the pod keeps away from others with its labels: hard, soft or off."""
    rules = pod.get("affinity", {}).get("podAntiAffinity", {})
    hard = rules.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    soft = [r["podAffinityTerm"] for r in rules.get("preferredDuringSchedulingIgnoredDuringExecution", [])]
    for word, terms in (("hard", hard), ("soft", soft)):
        if any(t["labelSelector"] and selects(t["labelSelector"], labels) for t in terms):
            return word
    return "off"


def spread(*args):
    """{component: how strictly its workers stay apart}, and the affinities as they are."""
    docs = render(*args)[3]
    return ({c: apart(p, labels) for _, c, p, labels in pods(docs) if c in ("prefill", "decode")},
            {c: p.get("affinity") for _, c, p, labels in pods(docs)})


def policies(where, docs):
    seen = set()
    for name, component, pod, labels in pods(docs):
        seen.add(component)
        at = f"{where}: {name}"
        check(at, pod.get("securityContext", {}).get("runAsNonRoot") is True, "may run as root")
        check(at, pod["securityContext"].get("seccompProfile"), "no seccomp profile")
        check(at, pod.get("automountServiceAccountToken") is False, "has a token of the API server")
        for c in pod["containers"] + pod.get("initContainers", []):
            image = c["image"]
            check(at, ":" in image and not image.endswith(":latest"), f"image {image} has no fixed tag")
            s = c.get("securityContext", {})
            check(at, s.get("readOnlyRootFilesystem") is True, f"{c['name']}: writable root")
            check(at, s.get("allowPrivilegeEscalation") is False and s["capabilities"]["drop"] == ["ALL"],
                  f"{c['name']}: privileges")
            r = c.get("resources", {})
            check(at, {"cpu", "memory"} <= r.get("requests", {}).keys() and "memory" in r.get("limits", {}),
                  f"{c['name']}: resources {r}")
        if component == "test":
            continue
        main = pod["containers"][0]
        for p in ("startupProbe", "livenessProbe", "readinessProbe"):
            check(at, "httpGet" in main.get(p, {}), f"no {p}")
        check(at, main["livenessProbe"]["httpGet"]["path"] == "/health", "liveness is not /health")
        check(at, main["readinessProbe"]["httpGet"]["path"].startswith("/ready"), "readiness is not /ready")
        stop = main.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        need = float(stop[1]) + drain_of(docs, component)
        check(at, pod["terminationGracePeriodSeconds"] > need,
              f"grace {pod['terminationGracePeriodSeconds']} s is not above preStop + drain = {need} s")
        secrets = {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
        mounted = {m["name"] for m in main["volumeMounts"]}
        check(at, mounted == {v["name"] for v in pod["volumes"]}, f"mounts {mounted}, volumes {pod['volumes']}")
        check(at, any("cluster" in s for s in secrets), f"no cluster key: {secrets}")
        check(at, any("admin" in s for s in secrets) == (component == "router"), f"the admin's keys: {secrets}")
        check(at, all(p.get("name") in ("http", "control") for p in main["ports"]), "another port is open")
        if component == "router":
            check(at, float(stop[1]) > 0, "no preStop: the Service sends it requests while it ends")
        else:
            check(at, apart(pod, labels) in ("soft", "hard"), f"two {component} workers may share a node: {pod.get('affinity')}")
            start = main["startupProbe"]
            check(at, start["periodSeconds"] * start["failureThreshold"] >= 600, "too little time to load")
    check(where, seen >= {"router", "prefill", "decode"}, f"pods of {seen} only")


def configurations(where, docs):
    """Each rendered configuration holds only keys that its daemon has."""
    for d in docs:
        if d["kind"] != "ConfigMap":
            continue
        for file, text in d["data"].items():
            if not file.endswith(".conf"):
                continue
            known = set(re.findall(r"(?m)^([a-z0-9_]+) =", (HERE.parents[1] / "configs" / file).read_text()))
            keys = re.findall(r"(?m)^([a-z0-9_]+) =", text)
            check(f"{where}: {file}", set(keys) <= known and len(keys) == len(set(keys)), f"keys {keys}")


def schemas(where, docs, path):
    custom = {f.stem: json.loads(f.read_text()) for f in (HERE / "schemas").glob("*.json")}
    for d in docs:
        if d["kind"] in custom:
            errors = [e.message for e in jsonschema.Draft7Validator(custom[d["kind"]]).iter_errors(d)]
            check(f"{where}: {d['kind']}", not errors, errors)
    for version in VERSIONS:
        rc, out, err = run(VALIDATE, "-k", version, "--strict", path)
        words = [line for line in (out + err).splitlines() if not line.startswith("INFO")]
        unknown = re.compile("Couldn't find schema for kind (%s) " % "|".join(custom))
        words = [line for line in words if not unknown.search(line)]
        check(f"{where}: Kubernetes {version}", rc == 0 and not words, words or out + err)


def main(tmp):
    examples = sorted((Path(CHART) / "examples").glob("*.yaml"))
    check("examples", len(examples) >= 4, examples)
    for values in [None, *examples]:
        where = values.stem if values else "defaults"
        args = ["-f", str(values)] if values else []
        rc, out, err = run(HELM, "lint", "--strict", CHART, *args)
        check(f"{where}: lint", rc == 0, out + err)
        rc, out, err, docs = render(*args)
        check(f"{where}: template", rc == 0, err)
        if rc == 0:
            path = tmp / f"{where}.yaml"
            path.write_text(out)
            policies(where, docs)
            configurations(where, docs)
            schemas(where, docs, str(path))
    # switches that no example turns
    for extra in (["--set", "ingress.enabled=true,ingress.tlsSecret=t"], ["--set", "apiKeys.enabled=false,linkTLS.existingSecret=links"],
                  ["--set", "networkPolicy.enabled=false,monitoring.alerts=false,monitoring.dashboard=false"]):
        rc, out, err, docs = render(*extra)
        check(" ".join(extra), rc == 0, err)
        policies(" ".join(extra), docs)
        configurations(" ".join(extra), docs)
        path = tmp / "switch.yaml"
        path.write_text(out)
        schemas(" ".join(extra), docs, str(path))
    # what must be refused, with a word about what is wrong
    for extra, word in ((["--set", "prefill.replicas=0"], "replicas"), (["--set", "image.tag=latest"], "tag"),
                        (["--set", "decode.typo=1"], "typo"), (["--set", "decode.spread=often"], "spread"), (["--set", "router.config.listen=x"], "listen"),
                        (["--set", "model.source=ftp"], "source"), (["--set", "gateway.enabled=true"], "parentRefs"),
                        (["--set", "podSecurityContext.runAsNonRoot=false"], "runAsNonRoot")):
        rc, out, err, docs = render(*extra)
        check(f"refused: {' '.join(extra)}", rc != 0 and word in err, err or "it was rendered")
    # who may reach the routers includes helm's own test
    docs = render("--set", "networkPolicy.clients[0].ipBlock.cidr=10.0.0.0/8")[3]
    [policy] = [d for d in docs if d["kind"] == "NetworkPolicy" and d["metadata"]["name"].endswith("-router")]
    [test] = [d for d in docs if d["kind"] == "Pod"]
    peers = policy["spec"]["ingress"][0]["from"]
    check("clients", {"ipBlock": {"cidr": "10.0.0.0/8"}} in peers and
          any("podSelector" in p and selects(p["podSelector"], test["metadata"]["labels"]) for p in peers), peers)
    service = [d for d in docs if d["kind"] == "Service"]
    check("services", not any(selects({"matchLabels": s["spec"]["selector"]}, test["metadata"]["labels"]) for s in service), service)
    # workers of a kind are kept apart as the values say, each kind for itself
    NODE = "decode.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]" \
           ".matchExpressions[0]"
    want = {"prefill": "soft", "decode": "soft"}
    for args, change in (([], {}), (["--set", "decode.spread=hard"], {"decode": "hard"}),
                         (["--set", "prefill.spread=off"], {"prefill": "off"}),
                         (["--set", "decode.workload=LeaderWorkerSet"], {}),
                         (["--set", f"{NODE}.key=gpu,{NODE}.operator=Exists"], {})):
        got, rules = spread(*args)
        check(f"apart: {' '.join(args)}", got == {**want, **change}, got)
        check(f"affinity: {' '.join(args)}", ("nodeAffinity" in rules["decode"]) == ("nodeAffinity" in str(args)), rules)
    got, rules = spread("--set", "decode.spreadTopologyKey=topology.kubernetes.io/zone")
    check("apart by zone", "topology.kubernetes.io/zone" in str(rules["decode"]) and "zone" not in str(rules["prefill"]), rules)
    got, rules = spread("-f", str(Path(CHART) / "examples/1p1d.yaml"))
    check("a podAntiAffinity of one's own", got == {"prefill": "hard", "decode": "hard"} and "preferred" not in str(rules), rules)
    kinds = {c: (p, labels) for _, c, p, labels in pods(render()[3])}
    check("a prefill and a decode worker may share a node", apart(kinds["decode"][0], kinds["prefill"][1]) == "off", kinds)
    # a worker more does not restart the others
    def checksum(*args):
        return {n: a for d in render(*args)[3] if d["kind"] in ("Deployment", "StatefulSet")
                for n, a in [(d["metadata"]["name"], d["spec"]["template"]["metadata"]["annotations"])]}
    one, two = checksum(), checksum("--set", "decode.replicas=2")
    check("scaling", [n for n in one if one[n] != two[n]] == ["t-baton-router"], f"{one} {two}")


if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as d:
        main(Path(d))
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(results["failed"] != 0)
