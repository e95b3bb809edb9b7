"""Mutual TLS between router and workers, with authorities and certificates that are made here."""
import os
import re
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from conftest import BIN, SLOW, TINY, Cluster, running, wait_for

MODEL = TINY / "llama-q8_0.gguf"


def openssl(*args):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


def authority(folder, name):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
            f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")


def certificate(folder, name, ca, usage="serverAuth,clientAuth", days=2):
    """NAME.pem and NAME.key, signed by the authority."""
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
            "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr")
    (folder / "ext").write_text(f"extendedKeyUsage={usage}\nsubjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / f"{ca}.pem", "-CAkey", folder / f"{ca}.key",
            "-CAcreateserial", "-days", days, "-extfile", folder / "ext", "-out", folder / f"{name}.pem")


def settings(folder, name, ca="ca"):
    return [f"link_cert_file={folder}/{name}.pem", f"link_key_file={folder}/{name}.key", f"link_ca_file={folder}/{ca}.pem"]


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    for ca in ("ca", "other"):
        authority(folder, ca)
    certificate(folder, "router", "ca", "clientAuth")
    certificate(folder, "worker", "ca", "serverAuth")
    certificate(folder, "stranger", "other")
    certificate(folder, "expired", "ca", days=-1)
    return folder


@pytest.fixture(scope="module")
def mutual(pki):
    yield from running(Cluster("--threads", "1", model=MODEL, sets=[
        *(f"routerd.{s}" for s in settings(pki, "router")),
        *(f"{d}.{s}" for d in ("prefilld", "decoded") for s in settings(pki, "worker"))]))


def control(cluster, name):
    [row] = [r for line in Path(cluster.state, "cluster").read_text().splitlines() if (r := line.split())[0] == name]
    return int(row[1].rsplit(":", 1)[1])


def heard(port, folder=None, name=None, ca="ca"):
    """What a worker says to who connects with this certificate, and the worker's own certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / f"{ca}.pem")
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    with socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW) as raw:
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as s:
            theirs = s.getpeercert(binary_form=True)
            try:
                return s.recv(1000), theirs
            except (ssl.SSLError, ConnectionError) as e:
                return str(e), theirs


def test_answers_come(mutual):
    s, r = mutual.post("/v1/completions", {"prompt": "hello", "max_tokens": 20, "ignore_eos": True})
    assert s == 200 and r["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("name,why", [(None, "CERTIFICATE_REQUIRED"), ("stranger", "UNKNOWN_CA"),
                                      ("expired", "EXPIRED"), ("worker", "UNSUPPORTED_CERTIFICATE")])
def test_who_has_no_certificate_of_a_router_hears_nothing(mutual, pki, name, why):
    """Also a worker's own certificate, where it says that it is for servers, makes nobody a router."""
    for worker in ("prefilld-1", "decoded-1"):
        said, _ = heard(control(mutual, worker), pki, name)
        assert isinstance(said, str) and why in said.upper().replace(" ", "_"), said
        with socket.create_connection(("127.0.0.1", control(mutual, worker)), timeout=20 * SLOW) as plain:
            plain.sendall(b"\x10\0\0\0\xef\xff\xff\xff" + bytes(24))  # the head of a frame
            got = b""
            try:
                while part := plain.recv(1000):
                    got += part
            except ConnectionError:
                pass
            assert b"ed-1" not in got and got[:1] in (b"", b"\x15")  # an alert at most
    assert b"decoded-1" in heard(control(mutual, "decoded-1"), pki, "router")[0]  # HELLO
    assert mutual.get("/ready")[0] == 200


@pytest.mark.parametrize("name,ca,why", [("stranger", "ca", "certificate verify failed"), ("expired", "ca", "certificate has expired"),
                                         ("router", "ca", "certificate verify failed"),
                                         ("worker", "other", "certificate verify failed")])
def test_the_router_takes_no_other_worker(pki, name, ca, why):
    """And neither side takes the other with the wrong authority."""
    cluster = Cluster("--threads", "1", model=MODEL, sets=[
        *(f"routerd.{s}" for s in settings(pki, "router")),
        *(f"{d}.{s}" for d in ("prefilld", "decoded") for s in settings(pki, "worker"))])
    try:
        cluster.start()
        cluster.local("stop", "decoded-1")
        conf = Path(cluster.state, "decoded-1.conf")
        text = re.sub(r"(?m)^link_.*\n", "", conf.read_text())
        conf.write_text(text + "".join(s + "\n" for s in settings(pki, name, ca)))
        cluster.local("start", "decoded-1")
        log = "routerd" if ca == "ca" else "decoded-1"
        wait_for(lambda: why in cluster.log(log), 20)
        assert cluster.get("/ready")[0] == 503
    finally:
        cluster.stop()


def test_a_reload_renews_them(mutual, pki):
    """Links that are up go on; the next connection has the new certificate. A bad file changes nothing."""
    port, pid = control(mutual, "decoded-1"), mutual.pid("decoded-1")
    old = heard(port, pki, "router")[1]
    keep = {f: (pki / f).read_bytes() for f in ("worker.pem", "worker.key", "router.pem", "router.key")}
    try:
        (pki / "worker.pem").write_text("no certificate")
        os.kill(pid, signal.SIGHUP)
        wait_for(lambda: "reload refused, nothing is changed" in mutual.log("decoded-1"), 10)
        assert heard(port, pki, "router")[1] == old
        certificate(pki, "worker", "ca", "serverAuth")
        certificate(pki, "router", "ca", "clientAuth")
        for name in ("decoded-1", "routerd"):
            seen = mutual.log(name).count("reload: 0 settings changed")
            os.kill(mutual.pid(name), signal.SIGHUP)
            wait_for(lambda: mutual.log(name).count("reload: 0 settings changed") > seen, 10)
        said, new = heard(port, pki, "router")
        assert new != old and b"decoded-1" in said
        assert mutual.get("/ready")[0] == 200
        mutual.local("stop", "prefilld-1")
        mutual.local("start", "prefilld-1")
        wait_for(lambda: mutual.get("/ready")[0] == 200, 20)
    finally:
        for f, data in keep.items():
            (pki / f).write_bytes(data)
    test_answers_come(mutual)


def check(program, *args):
    p = subprocess.run([BIN / program, "--model", MODEL, *args, "--check-config"], capture_output=True, text=True,
                       timeout=60 * SLOW)
    return p.returncode, p.stderr


def test_settings(pki, tmp_path):
    """All three or none; with them workers may listen beyond loopback, but KV still needs the cluster key."""
    flags = [x for s in settings(pki, "worker") for x in ("--" + s.split("=")[0].replace("_", "-"), s.split("=")[1])]
    for program in ("routerd", "prefilld", "decoded"):
        assert check(program, *flags)[0] == 0
        for i in (0, 2, 4):
            rc, said = check(program, *flags[:i], *flags[i + 2:])
            assert rc == 1 and "go together" in said and flags[i][2:].replace("-", "_") + " is not set" in said
        rc, said = check(program, *flags[:3], pki / "router.key", *flags[4:])
        assert rc == 1 and "router.key" in said
    assert check("decoded", *flags, "--listen", "0.0.0.0:0")[0] == 0
    p = subprocess.run([BIN / "decoded", "--model", MODEL, *flags, "--data-devices", "eth0"], capture_output=True, text=True,
                       timeout=60 * SLOW)
    assert p.returncode == 1 and "set cluster_key_file" in p.stderr
    for n, s in zip(("link_cert", "link_key", "link_ca"), settings(pki, "worker")):
        (tmp_path / f"baton.{n}").write_bytes(Path(s.split("=")[1]).read_bytes())
    env = {**os.environ, "CREDENTIALS_DIRECTORY": str(tmp_path)}
    p = subprocess.run([BIN / "decoded", "--model", MODEL, "--listen", "0.0.0.0:0", "--check-config"], env=env,
                       capture_output=True, timeout=60 * SLOW)
    assert p.returncode == 0
