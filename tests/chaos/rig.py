"""A cluster that can be made to fail: fault points of the programs, signals, and a proxy on every
control link."""
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))

from conftest import SLOW, Cluster, wait_for  # noqa: E402
from proxy import Proxies  # noqa: E402


class Rig(Cluster):
    """A Cluster with BATON_FAULT=@FILE and, if asked for, proxies between router and workers."""

    def __init__(self, *options, proxied=False, **kw):
        super().__init__(*options, faults=True, **kw)
        self.proxies = Proxies() if proxied else None
        self.marks = {}
        self.names = []
        self.keep = False  # the logs, after stop

    def start(self):
        super().start()
        rows = [line.split() for line in Path(self.state, "cluster").read_text().splitlines()]
        self.names = [r[0] for r in rows]
        self.workers = self.names[1:]
        if self.proxies:
            self._interpose({r[0]: r[1] for r in rows})
        self.wait_linked()
        return self

    def _interpose(self, listen):
        """The router connects to proxies from now on."""
        lists = {"prefilld": [], "decoded": []}
        for name in self.workers:
            host, port = listen[name].rsplit(":", 1)
            p = self.proxies.add(name, host, int(port))
            lists[name.rsplit("-", 1)[0]].append(f"127.0.0.1:{p.port}")
        self.local("stop", "routerd")
        conf = Path(self.state, "routerd.conf")
        text = re.sub(r"(?m)^(prefill|decode) = .*\n", "", conf.read_text())
        conf.write_text(text + f"prefill = {','.join(lists['prefilld'])}\n"
                               f"decode = {','.join(lists['decoded'])}\n")
        self.local("start", "routerd")

    def stop(self):
        self.disarm()
        for name in self.names:
            self.signal(name, signal.SIGCONT)
        self.local("stop", check=False)
        if not self.keep:
            shutil.rmtree(self.state, ignore_errors=True)
        if self.proxies:
            self.proxies.close()
        assert not self.left(), f"processes left: {self.left()}"

    def left(self):
        """Processes of this cluster that still live."""
        found = []
        for p in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.state).encode() in p.read_bytes():
                    found.append(p.parent.name)
            except OSError:
                pass
        return found

    # ---- processes ----

    def pid(self, name):
        """The pid of the living process, or 0. A zombie is dead."""
        try:
            pid, since = Path(self.state, f"{name}.pid").read_text().split()
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, ValueError):
            return 0
        return int(pid) if fields[0] not in "ZX" and fields[19] == since else 0

    def state_letter(self, name):
        try:
            return Path(f"/proc/{self.pid(name)}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return "-"

    def signal(self, name, sig):
        pid = self.pid(name)
        if pid:
            os.kill(pid, sig)
        return pid

    def restart(self, name):
        self.local("start", name)

    def wait_linked(self, seconds=20):
        """Until the router has a link, and numbers, of every worker."""
        def linked():
            try:
                return len(self.all_blocks()) == len(self.workers) and self.get("/ready")[0] == 200
            except OSError:  # it is not there yet
                return False
        wait_for(linked, seconds)

    def reset(self, **keys):
        """Changes settings of the router while it runs."""
        path = Path(self.state, "routerd.conf")
        text = re.sub(rf"(?m)^({'|'.join(keys)}) = .*\n", "", path.read_text())
        path.write_text(text + "".join(f"{k} = {v}\n" for k, v in keys.items()))
        self.reload()

    # ---- fault points ----

    def arm(self, *entries):
        self.marks = {n: self.log_size(n) for n in self.names}
        super().arm(*entries)

    def fired(self, name):
        """How often points were hit with an action since arm."""
        return len(self.lines(name, " fault: ", self.marks.get(name, 0)))

    # ---- after a fault ----

    def heal(self):
        """Everything runs, and is linked, again."""
        self.disarm()
        if self.proxies:
            self.proxies.heal()
        for name in self.names:
            if self.state_letter(name) == "T":
                self.signal(name, signal.SIGCONT)
        for name in self.names:
            if not self.pid(name):
                self.restart(name)
        self.wait_linked()

    # ---- logs ----

    def log_size(self, name):
        return Path(self.state, f"{name}.log").stat().st_size

    def lines(self, name, pattern, since=0):
        """Matches in the log behind byte `since`."""
        with open(Path(self.state, f"{name}.log"), "rb") as f:
            f.seek(since)
            return re.findall(pattern, f.read().decode(errors="replace"))


def poll(what, seconds, every=0.01):
    """Like wait_for, but says whether it came true."""
    end = time.monotonic() + seconds * SLOW
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(every)
    return False
