"""Shared code of the scripts that run `rockmill bench`: slowed devices, turns, saved results, tables."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
V1, V1_MEMORY, V2 = "/sys/fs/cgroup/blkio", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


def fail(message):
    """Ends the script with its name and a message."""
    sys.exit(f"{os.path.basename(sys.argv[0])}: {message}")


def device_of(directory):
    """The numbers of a directory's disk, as `major:minor`. A limit applies to the whole disk, not to a partition."""
    number = os.stat(directory).st_dev
    major, minor = os.major(number), os.minor(number)
    entry = os.path.realpath(f"/sys/dev/block/{major}:{minor}")
    if not os.path.exists(entry):
        fail(f"{directory} is not on a block device")
    if os.path.exists(os.path.join(entry, "partition")):
        entry = os.path.dirname(entry)
    with open(os.path.join(entry, "dev"), encoding="ascii") as f:
        return f.read().strip()


class Throttle:
    """A control group that slows devices for its processes and limits their memory, including their page cache.

    `limits` has for each device (`major:minor`) a dict of `rbps`, `wbps`, `riops`, `wiops`, the names of io.max.
    `memory` is in bytes; 0: no limit.
    """

    def __init__(self, limits, memory=0):
        name = f"rockmill-slow-{os.getpid()}"
        writes = self.writes = []
        self.paths = []
        if os.path.exists(os.path.join(V1, "blkio.throttle.write_bps_device")):
            self.paths = [os.path.join(V1, name)]
            names = {"rbps": "read_bps", "wbps": "write_bps", "riops": "read_iops", "wiops": "write_iops"}
            for device, of in limits.items():
                for key, n in of.items():
                    writes.append((f"{V1}/{name}/blkio.throttle.{names[key]}_device", f"{device} {n}"))
            if memory:
                self.paths.append(os.path.join(V1_MEMORY, name))
                writes.append((f"{V1_MEMORY}/{name}/memory.limit_in_bytes", str(memory)))
        elif os.path.exists(os.path.join(V2, "cgroup.controllers")):
            with open(os.path.join(V2, "cgroup.subtree_control"), encoding="ascii") as f:
                there = f.read().split()
            for wanted in ["io", "memory"] if memory else ["io"]:
                if wanted not in there:
                    fail(f"the controller {wanted} is off: echo +{wanted} > {V2}/cgroup.subtree_control")
            self.paths = [os.path.join(V2, name)]
            for device, of in limits.items():
                limit = " ".join([device, *(f"{key}={n}" for key, n in of.items())])
                writes.append((f"{V2}/{name}/io.max", limit))
            if memory:
                writes.append((f"{V2}/{name}/memory.max", str(memory)))
        else:
            fail(f"there is no control group that slows devices: neither {V1} (v1) nor io.max (v2)")

    def make(self):
        """Makes the group. Not in the constructor, so that the object can remove the group even if this fails."""
        try:
            for path in self.paths:
                os.mkdir(path)
            for file, value in self.writes:
                with open(file, "w", encoding="ascii") as f:
                    f.write(value)
        except OSError as e:
            self.close()
            fail(f"the limit cannot be set (root is needed): {e}")

    def enter(self):
        """Moves this process into the group; for a child, between fork and exec."""
        for path in self.paths:
            with open(os.path.join(path, "cgroup.procs"), "w", encoding="ascii") as f:
                f.write(str(os.getpid()))

    def close(self):
        """Removes the group. Its killed processes may take a while to end."""
        for path in self.paths:
            for _ in range(50):
                try:
                    os.rmdir(path)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)


def program(given):
    """The given program, or else rockmill-bench, which this builds."""
    if given:
        return given
    if subprocess.run(["cargo", "build", "--locked", "--release", "-q", "-p", "rockmill-bench"], cwd=ROOT,
                      check=False).returncode:
        fail("cargo could not build rockmill-bench")
    return os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "rockmill-bench")


def run(command, enter=None):
    """The results that one process of the benchmark writes to its JSON file."""
    with tempfile.TemporaryDirectory() as where:
        out = os.path.join(where, "run.json")
        done = subprocess.run([*command, f"--json={out}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              check=False, preexec_fn=enter)
        if done.returncode != 0:
            fail(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
        with open(out, encoding="utf-8") as f:
            return json.load(f)


def in_turn(sides, pair):
    """The sides in turn; each pair starts with a different one."""
    sides = list(sides)
    return sides[:: -1 if pair % 2 else 1] if len(sides) == 2 else sides[pair % len(sides):] + sides[:pair % len(sides)]


def load(path):
    """Earlier results, if there are any."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def save(path, results):
    """Replaces the file of results atomically: an interrupt leaves the old file or the new one."""
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(results, f)
    os.replace(path + ".new", path)


def ratio(benchmark, figure, side="rockmill", peer="rocksdb"):
    """A side's figure divided by the peer's, pair by pair: median, minimum, maximum."""
    mine = benchmark["sides"].get(side, [])
    theirs = benchmark["sides"].get(peer, [])
    all_of = [a[figure] / b[figure] for a, b in zip(mine, theirs) if b.get(figure) and a.get(figure) is not None]
    return (statistics.median(all_of), min(all_of), max(all_of)) if all_of else None


def number(value):
    """A ratio for a table."""
    return "" if value is None else f"{value[0]:.2f}"


def tables_of_sides(section, found, figures, out):
    """A table for each figure with a column for each side: medians, with ratios to the peer's in brackets.

    `found` has rows with their results, `figures` names, titles, units and digits (None: by the size).
    """
    sides = list(dict.fromkeys(side for _, result in found for b in result["benchmarks"] for side in b["sides"]))
    sides.sort(key=lambda side: side == "rocksdb")
    for figure, title, unit, digits in figures:
        lines = []
        for row, result in found:
            for benchmark in result["benchmarks"]:
                line = []
                for side in sides:
                    of = [r.get(figure) for r in benchmark["sides"].get(side, [])]
                    if None in of or not of:
                        line.append("")
                        continue
                    median = statistics.median(of) * unit
                    part = number(ratio(benchmark, figure, side)) if side != "rocksdb" else ""
                    shown = digits if digits is not None else 0 if median >= 100 else 1
                    line.append(f"{median:,.{shown}f}" + (f" ({part})" if part else ""))
                if any(line):
                    lines.append(f"| `{benchmark['name']}`; {row} | {' | '.join(line)} |")
        if lines:
            print(f"\n### {section}: {title} (in brackets: RocksDB's is 1)\n", file=out)
            print(f"| workload | {' | '.join(sides)} |", file=out)
            print("|---" * (len(sides) + 1) + "|", file=out)
            print("\n".join(lines), file=out)
