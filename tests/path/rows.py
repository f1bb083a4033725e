# SPDX-License-Identifier: Apache-2.0
"""The shipped tables as an engineer reads them: the rows of one exact shape, the fastest of the kernels measured side by
side, straight lines between rows on logarithmic axes. Nothing here is shared with the program.

A line of a table is a series: its last field holds points `axis:us`, e.g. `m:us`."""
import bisect
import collections
import csv
import gzip
import math
import pathlib
import statistics

Row = collections.namedtuple("Row", "table fields points")


class Profiles:
    """The tables of one GPU: folders <engine>-<version>."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.read = {}

    def versions(self, engine, asked):
        """Of an engine, the version asked for or the newest first."""
        found = [f.name[len(engine) + 1:] for f in self.folder.iterdir() if f.name.startswith(engine + "-")]
        number = lambda text: [int("".join(c for c in part if c.isdigit()) or 0) for part in text.replace("rc", ".").split(".")]
        return sorted(found, key=lambda v: (v == asked, number(v)), reverse=True)

    def table(self, engine, version, name):
        """{all fields but the last: [(axis value, the further values), ...]} of a table, or nothing."""
        key = engine, version, name
        if key not in self.read:
            self.read[key] = None
            for suffix, opened in ((".csv.gz", gzip.open), (".csv", open)):
                file = self.folder / f"{engine}-{version}" / (name + suffix)
                if not file.exists():
                    continue
                with opened(file, "rt", newline="") as text:
                    lines = csv.reader(text)
                    head = next(lines)
                    axes = head[-1].split(":")
                    if len(axes) < 2:
                        break  # a few single rows, which change what another version says
                    more = axes.index("us") - 1 if "us" in axes else 0  # fields before the axis of the series
                    series = collections.defaultdict(list)
                    for line in lines:
                        for point in line[-1].split():
                            values = point.split(":")
                            series[tuple(line[:-1] + values[:more])].append(tuple(map(float, values[more:])))
                    names = head[:-1] + axes[:more]
                    self.read[key] = [(dict(zip(names, fields)), points) for fields, points in series.items()]
        return self.read[key]

    def series(self, engine, asked, name, **shape):
        """The series of the nearest version that has the shape, and that version; [] where none has."""
        for version in self.versions(engine, asked):
            rows = [(fields, points) for fields, points in self.table(engine, version, name) or []
                    if all(fields.get(k) == str(v) for k, v in shape.items())]
            if rows:
                return rows
        return []


def mean_of_equal(points):
    """One (x, y) for each x: what was measured twice counts as its mean."""
    groups = collections.defaultdict(list)
    for x, y in points:
        groups[x].append(y)
    return sorted((x, sum(ys) / len(ys)) for x, ys in groups.items())


def between(points, x, reach=1.0):
    """log-log interpolation; None where x is no row and the rows on both sides are more than 2 `reach` octaves apart."""
    points = mean_of_equal(points)
    xs = [p[0] for p in points]
    i = bisect.bisect_left(xs, x)
    if i < len(xs) and xs[i] == x:
        return points[i][1]
    if i == 0 or i == len(xs):
        return None
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    x0, x1, x = max(x0, 0.5), max(x1, 0.5), max(x, 0.5)
    if math.log2(x1 / x0) > 2 * reach:
        return None
    share = math.log(x / x0) / math.log(x1 / x0)
    return math.exp(math.log(y0) * (1 - share) + math.log(y1) * share)


def fastest(values):
    values = [v for v in values if v is not None]
    return min(values) if values else None


def by_kernel(rows):
    groups = collections.defaultdict(list)
    for fields, points in rows:
        groups[fields.get("kernel", ""), fields.get("precision", "")].append((fields, points))
    return groups.values()


def along(rows, x, reach=0.5):
    """Rows of one axis: a GEMM by m, a collective by bytes."""
    return fastest(between([p[:2] for _, points in kernel for p in points], x, reach) for kernel in by_kernel(rows))


def product(rows, m, n, k):
    """[m, k] x [k, n]: of each kernel the rows of this shape, where they are less than two octaves apart around m; else
    those of the nearest shape, at most half an octave away on each side, whose time but for a launch goes with n k.
    Returns the fastest, and whether it is of rows of this shape at most an octave apart."""
    answers = []
    for kernel in by_kernel(rows):
        sides = lambda f: (abs(math.log2(float(f["n"]) / n)), abs(math.log2(float(f["k"]) / k)))
        alike = [f for f in kernel if max(sides(f[0])) < 0.5]
        for fields, points in sorted(alike, key=lambda f: sum(sides(f[0]))):
            points = [p[:2] for p in points]
            us = between(points, m, 1)
            if us is None:
                continue
            launch = min(us, 3)
            same = sum(sides(fields)) == 0
            answers.append((launch + (us - launch) * n * k / float(fields["n"]) / float(fields["k"]),
                            same and between(points, m, 0.5) is not None))
            break
    return min(answers) if answers else (None, False)


def over(lines, y, x, share=lambda y, x: y * x):
    """Rows of two axes, of attention: lines of one y, e.g. batch, with points of x, e.g. context. On each line between its
    points, then between lines. Where a kernel has no rows on all sides: its nearest row, at most an octave away on each
    axis, whose time but for a launch goes with `share`. Returns the time of the fastest kernel and whether its rows
    were on all sides. `lines`: {kernel: [(y, [(x, us)])]}"""
    answers = []
    for kernel in lines.values():
        merged = collections.defaultdict(list)
        for at, points in kernel:
            merged[at] += points
        values = [(at, between(points, x)) for at, points in merged.items()]
        value = between([v for v in values if v[1] is not None], y)
        exact = value is not None
        if not exact:
            points = [(at, px, us) for at, line in merged.items() for px, us in line]
            alike = [p for p in points if 0.5 <= p[0] / y <= 2 and 0.5 <= p[1] / x <= 2]
            if alike:
                row = min(alike, key=lambda p: math.hypot(math.log2(p[0] / y), math.log2(p[1] / x)))
                launch = min(p[2] for p in points)
                value = launch + (row[2] - launch) * share(y, x) / share(row[0], row[1])
        if value is not None:
            answers.append((value, exact))
    return min(answers) if answers else (None, False)


def expert_layer(rows, rough, tokens, copies, active):
    """The expert layer of one rank: of each kernel the row nearest in tokens of the group, copies on the rank and active
    experts, at most an octave and a half away, its time scaled by the data sheet's `rough` for the difference. Returns the fastest,
    and whether its row is as good as at the place."""
    answers = []
    for kernel in by_kernel(rows):
        apart = lambda p: abs(math.log2(p[0] / tokens)) + math.hypot(math.log2(p[2] / copies), 2 * math.log2(p[3] / active))
        points = [p for _, line in kernel for p in line if len(p) == 4]
        if not points:
            continue
        near = min(map(apart, points))
        alike = [p for p in points if apart(p) < near + 0.1]  # several draws of one load: their mean
        if near < 1.5:
            answers.append((statistics.mean(p[1] * rough(tokens, copies, active) / rough(p[0], p[2], p[3]) for p in alike), near < 0.4))
    return min(answers) if answers else (None, False)
