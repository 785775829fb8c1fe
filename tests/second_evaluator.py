"""A second reading of the tables, from the words of the design: raw YAML in, a verdict for every candidate out.

It shares no code with attnroute: every set is listed out (up to LIMIT), every row tested one by one. A question (`ask`)
is a plain dict: a value per step (absent or None: free), `features` and `env` as dicts, and the options of `route`.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

FEATURES = ("window", "softcap", "noncausal", "alibi", "mask", "sinks", "varlen", "per_head_scales", "batch_invariance")
STEPS = ["kind", "phase", "storage", "kv", "head_dim", "latent", "rope", "nope", "q_len", "lse", "dcp", "group_ratio"]
STEPS += ["q_heads", "q_heads_gathered", "topk", *FEATURES, "layout", "cuda_graph", "q", "page"]
STEPS += ["evidence", "env", "call", "package_version"]
CODES = {step: step.replace("_", "-") for step in STEPS} | {"kv": "kv-dtype", "dtypes": "kv-dtype", "q": "q-dtype"}
CODES |= {"latent": "head-dim", "rope": "head-dim", "nope": "head-dim", "page": "page-size"}
CODES |= {"q_heads_gathered": "q-heads"}
DIMS = [
    step for step in STEPS if step not in (*FEATURES, "lse", "kv", "q", "evidence", "env", "call", "package_version")
]
LEVELS, NAMED, LIMIT = ("none", "uniform1", "uniform", "always"), ("kind", "phase", "storage", "layout"), 4096
EVIDENCE = ("capture", "compiled", "source", "report", "claimed", "inferred")
STRENGTHS = ("measured", *EVIDENCE[1:])
OMITTED = {"kind": "gqa", "q_len": 1, "topk": None, "layout": "unknown", "cuda_graph": "unknown"}  # the rest: any
BADNESS = {"raises": 1, "unknown": 2}  # what silently goes wrong or crashes is told first
OWN = {None: ("bf16", "fp16")}  # the dtypes that a model of free dtype may have
Item = dict[str, Any]
V = cache(Version)


def span(text: Any) -> range:
    head, _, step = str(text).partition("/")
    lo, dots, hi = head.partition("..")
    return range(int(lo), int(hi if hi else LIMIT if dots else lo) + 1, int(step or 1))


@cache
def members(dim: str, parts: tuple[Any, ...]) -> frozenset[Any]:
    """The set that a dimension's value stands for."""
    if dim == "cuda_graph":
        return frozenset(LEVELS[: LEVELS.index(parts[0]) + 1])
    if dim in NAMED or parts == (None,):
        return frozenset(parts)
    cut = [("1..", "", "") if part == "any" else str(part).partition("x") for part in parts]
    if dim == "head_dim":
        return frozenset((a, b) for qk, x, v in cut for a in span(qk) for b in (span(v) if x else (a,)))
    return frozenset(n for text, _, _ in cut for n in span(text))


def as_set(dim: str, value: Any) -> frozenset[Any]:
    return members(dim, tuple(value) if isinstance(value, list) else (value,))


@cache
def public(version: str) -> str:
    return version if version.startswith("git+") else Version(version).public


@cache
def within(bounds: str, version: str) -> bool:
    lo, _, hi = bounds.partition("..")
    if "git+" in bounds + version:
        return bounds == version
    return (not lo or V(lo) <= V(version)) and (not hi or V(version) < V(hi))


@cache
def around(seen: frozenset[str], version: str) -> tuple[str | None, str | None]:
    """The nearest versions looked at on both sides: itself twice if it was, None where there is none."""
    if version in seen or "git+" in version:
        return (version, version) if version in seen else (None, None)
    below, above = [v for v in seen if V(v) < V(version)], [v for v in seen if V(v) > V(version)]
    return max(below, key=V, default=None), min(above, key=V, default=None)


def lay(under: Item, over: Item) -> Item:
    """Maps merge by key, exclusions add, everything else is replaced; evidence stays where it was written."""
    under = {key: value for key, value in under.items() if key != "evidence"}
    added = {key: under[key] | over[key] for key in ("features", "env") if key in under and key in over}
    return under | over | added | {"exclusions": under.get("exclusions", []) + over.get("exclusions", [])}


class Tables:
    """All tables, `like` and `mirrors` laid flat. `rows` and `traps` are as written, by architecture."""

    def __init__(self, folder: Path) -> None:
        files = [*folder.glob("arch/*.yaml"), folder / "kernels.yaml", folder / "calls.yaml"]
        self.raw = {p.stem: yaml.load(p.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) for p in files}
        self.kernels, self.calls = self.raw.pop("kernels")["kernels"], self.raw.pop("calls")["calls"]
        meets = [(name, call.get("meets") or {}) for name, call in self.calls.items()]
        self.supplied = {m["feature"]: name for name, m in meets if "feature" in m}
        casts = [(name, m["q_dtype"]) for name, m in meets if "q_dtype" in m]
        self.casts = [(name, a, b) for name, cast in casts for a in cast["from"] for b in cast["to"]]
        self.rows = {arch: [self.finish(arch, *kr) for kr in self.items(arch, "kernels", "row")] for arch in self.raw}
        self.traps = {
            arch: [self.box(k, t, t["trap"]) for k, t in self.items(arch, "traps", "trap")] for arch in self.raw
        }

    def items(self, arch: str, section: str, key: str) -> list[tuple[str, Item]]:
        below = self.items(self.raw[arch]["mirrors"], section, key) if "mirrors" in self.raw[arch] else ()
        flat = {(kernel, item[key]): item | {"evidence": []} for kernel, item in below}
        for kernel, items in (self.raw[arch].get(section) or {}).items():
            for item in items:
                like = self.like(item["like"]) if "like" in item else flat.get((kernel, item[key]), {})
                every = [e for e in like.get("evidence", ()) if e.get("every_arch")]
                flat[kernel, item[key]] = lay(like, item | {"evidence": item.get("evidence", []) + every})
        return [(kernel, item) for (kernel, _), item in flat.items()]

    def like(self, ref: str) -> Item:
        *arch, kernel, name = ref.split("/")
        rows = self.items(arch[0], "kernels", "row") if arch else [(kernel, r) for r in self.kernels[kernel]["rows"]]
        item = next(row for k, row in rows if (k, row["row"]) == (kernel, name))
        item = lay(self.like(item["like"]), item) if "like" in item and not arch else item
        return {k: v for k, v in item.items() if k not in ("row", "package", "seen", "like")}

    def box(self, kernel: str, item: Item, name: str, versions: str = "") -> Item:
        where = {dim: as_set(dim, v) for dim, v in item["where"].items() if dim not in ("features", "dtypes")}
        where |= {dim: {bool(v)} for dim, v in item["where"].get("features", {}).items()}
        where |= {"dtypes": item["where"]["dtypes"]} if "dtypes" in item["where"] else {}
        versions = item.get("versions") or versions or next(iter(item["package"].values()))
        return item | {"sets": where, "kernel": kernel, "name": name, "versions": versions}

    def finish(self, arch: str, kernel: str, item: Item) -> Item:
        """A row with a set for every step that asks for one; `unsaid` are the steps for which nobody looked."""
        item = {"features": {}, "env": {}, "call": [], "exclusions": []} | item
        (versions,) = item["package"].values()
        plain = {dim: item.get(dim, OMITTED.get(dim, "any")) for dim in DIMS}
        plain |= {name: item["features"].get(name, "unknown") for name in (*FEATURES, "lse")}
        sets: Item = {"unsaid": {dim for dim, value in plain.items() if value == "unknown"}}
        for dim, value in plain.items():
            if dim in (*FEATURES, "lse"):
                able = value if isinstance(value, list) else ("fp16", "bf16", "fp32") if value else ()
                asked = [True, *able] if value else []
                sets[dim] = {*asked, *([] if value == "required" and dim not in self.supplied else [False])}
            elif value != "unknown":
                sets[dim] = as_set(dim, value)
        proof = min((n for e in item.get("evidence", ()) for n, kind in enumerate(EVIDENCE) if kind in e), default=5)
        sets |= {
            "kv": {kv for kvs in item["dtypes"].values() for kv in kvs},
            "evidence": STRENGTHS[proof:],
            "proof": proof,
        }
        holes = [self.box(kernel, hole, item["row"], versions) for hole in item["exclusions"]]
        sets |= {"holes": holes, "kernel": kernel, "id": f"{arch}/{kernel}/{item['row']}", "versions": versions}
        return item | {"sets": sets | {"seen": frozenset(map(public, item["seen"]))}, "kernel": kernel}

    def reads(self, ask: Item, model: str | None) -> list[str]:
        """The query dtypes that a kernel may be given: the model's own, then those a cast reaches."""
        own = OWN.get(model, (model,))
        return [*own, *(to for call, a, to in self.casts if a in own and to not in own and call not in ask["cannot"])]

    def state(self, row: Item, step: str, ask: Item) -> bool | None:
        """Whether a row serves one step of a question; None where nobody looked."""
        features, kv, need = ask["features"], ask["kv"], row["env"]
        if step == "q":
            able = row["dtypes"] if ask["q"] is kv is None else self.reads(ask, ask["q"])
            return any(q in row["dtypes"] and kv in (None, *row["dtypes"][q]) for q in able)
        if step == "env":
            known = {key: have for key, have in ask["env"].items() if key in need}
            return all(within(need[k], public(v)) if k == "cuda" else v or not need[k] for k, v in known.items())
        if step == "call":
            must = [
                c
                for c in row["call"]
                if {*self.calls[c].get("when", features)} & {*features} or "when" not in self.calls[c]
            ]
            must += [c for f, c in self.supplied.items() if row["features"].get(f) == "required" and f not in features]
            return not set(must) & set(ask["cannot"])
        asked = features.get(step, False) if step in (*FEATURES, "lse") else ask[step]
        free = asked is None and step != "topk"
        return free or (None if step in row["sets"]["unsaid"] and asked is not False else asked in row["sets"][step])

    def states(self, row: Item, ask: Item) -> list[bool | None]:
        """How a row serves step after step, up to the first that it does not."""
        found: list[bool | None] = []
        for step in STEPS[:-1]:
            found.append(self.state(row, step, ask))
            if found[-1] is False:
                break
        return found

    def met(self, box: Item, rows: list[Item], ask: Item) -> list[str] | None:
        """The free dimensions that a hole or trap still depends on (none: it is hit), or None if it is missed."""
        free = [
            dim for dim in box["sets"] if dim in STEPS and dim not in FEATURES and ask[dim] is None and dim != "topk"
        ]
        for dim, held in box["sets"].items():
            if dim == "dtypes":  # by the query dtype that the kernel would be given for each model dtype
                for model in OWN.get(ask["q"], (ask["q"],)):
                    fits = [q for q in self.reads(ask, model) if any(ask["kv"] in r["dtypes"].get(q, ()) for r in rows)]
                    if ask["kv"] not in held.get([*fits, model][0], ()):
                        return None
            elif dim not in free and (dim in ask["features"] if dim in FEATURES else ask[dim]) not in held:
                return None
        return free

    def worst(self, boxes: list[Item]) -> Item:
        box = min(boxes, key=lambda b: (BADNESS.get(b["outcome"], 0), b["name"], b["why"]))
        status = {"raises": "rejected", "unknown": "undeclared"}.get(box["outcome"], "known-wrong")
        last = max((dim for dim in box["sets"] if dim in STEPS), key=STEPS.index, default="")
        return {"status": status, "code": (box.get("code") or CODES[last]) if status == "rejected" else status}

    def fit(
        self, row: Item, boxes: list[tuple[Item, list[str]]], version: str, ask: Item
    ) -> tuple[list[Item], Any, Item]:
        """What stands against a row that holds the question, its rank, and its answer."""
        holes = [h for h in row["sets"]["holes"] if h["outcome"] != "unknown" or not ask["allow_unknown"]]
        cuts = [(hole, free) for hole in holes if (free := self.met(hole, [row], ask)) is not None] + boxes
        cuts = [(box, free) for box, free in cuts if len(free) < 2 and within(box["versions"], version)]
        left = {dim: row["sets"].get(dim, {None}) for dim in DIMS}
        for box, free in cuts:
            left |= {dim: left[dim] - box["sets"][dim] for dim in free}
        fits = [q for q in self.reads(ask, ask["q"]) if ask["kv"] in row["dtypes"].get(q, ())][:1]
        cast = bool(fits) and fits[0] not in OWN.get(ask["q"], (ask["q"],))
        rank = (None in around(row["sets"]["seen"], version), row["sets"]["proof"], cast, row["row"])
        pages = left["page"] if ask["page"] is None else frozenset([ask["page"]])
        answer = {"status": "accepted", "code": None, "pages": pages, "q": fits, "row": row}
        return [box for box, free in cuts if not all(left[dim] for dim in free) or not free], rank, answer

    def at(
        self, tested: list[tuple[Item, list[Any]]], hit: list[tuple[Item, list[str]]], version: str, ask: Item
    ) -> Item:
        """The answer of the rows, exclusions and traps that hold exactly this version."""
        if traps := [box for box, free in hit if not free and within(box["versions"], version)]:
            return self.worst(traps) | {"trap": True}
        mine = [(row, states) for row, states in tested if within(row["sets"]["versions"], version)]
        refused: list[Item] = []
        for unsure in (False, True):
            able = [row for row, states in mine if False not in states and (unsure or None not in states)]
            fits = [self.fit(row, hit, version, ask) for row in able]
            if clear := [(rank, answer) for boxes, rank, answer in fits if not boxes]:
                best = min(clear, key=lambda ranked: ranked[0])[1]
                return (
                    best
                    if not unsure or ask["allow_unknown"]
                    else best | {"status": "undeclared", "code": "undeclared"}
                )
            if able:
                refused.append(self.worst([box for boxes, _, _ in fits for box in boxes]))
            if refused and not ask["allow_unknown"]:
                break
        last = max([*states, False].index(False) for _, states in mine or tested) if tested else -1
        return refused[0] if refused else {"status": "rejected", "code": CODES[STEPS[last]]}

    def judge(self, rows: list[Item], traps: list[Item], version: str, ask: Item) -> Item:
        """Status, code of the reason, pages and row for one candidate of an installed version."""
        tested = [(row, self.states(row, ask)) for row in rows]
        hit = [(trap, free) for trap in traps if (free := self.met(trap, rows, ask)) is not None]
        here, sure = self.at(tested, hit, version, ask), True
        seen = frozenset(v for row in rows for v in row["sets"]["seen"])
        sides, live = around(seen, version), any(within(row["sets"]["versions"], version) for row in rows)
        if not here.get("trap") and live and version not in seen and (sides[0] is None or sides[1] is not None):
            near = [self.at(tested, hit, v, ask) for v in sides if v is not None and None not in sides]
            sure = bool(near) and all(n.get(k) == here.get(k) for n in near for k in ("status", "pages", "q"))
        elif here["status"] == "accepted":  # the row itself must have been looked at near this version
            below, above = around(here["row"]["sets"]["seen"], version)
            sure = below is not None and (above is not None or not ask["strict_versions"])
        unproven = {"status": "undeclared", "code": "undeclared"}
        return here if sure or (here["status"] == "accepted" and ask["allow_unknown"]) else unproven

    def answer(self, arch: str, ask: Item, packages: dict[str, str], complete: bool = False) -> dict[Any, Item]:
        """The verdict of every candidate, by (kernel, package)."""
        full: Item = dict.fromkeys(STEPS) | {"features": {}, "env": {}, "cannot": (), "kind": "gqa", "dcp": 1}
        full |= {"allow_unknown": False, "strict_versions": False} | ask
        full["features"] = full["features"] | ({"lse": True} if full["dcp"] > 1 else {})
        full["q_heads_gathered"] = full["q_heads"] and full["q_heads"] * full["dcp"]
        found: dict[Any, Item] = {}
        for key in ((kernel, provider) for kernel, entry in self.kernels.items() for provider in entry["providers"]):
            rows, traps = (
                [i for i in kind[arch] if (i["kernel"], *i["package"]) == key] for kind in (self.rows, self.traps)
            )
            if key[1] not in packages:
                absent = "package-missing" if complete else "not-considered"
                found[key] = {"status": "not-considered", "code": absent}
            elif not rows and not traps:
                found[key] = {"status": "rejected", "code": "arch"}
            else:
                found[key] = self.judge(rows, traps, public(packages[key[1]]), full)
        return found
