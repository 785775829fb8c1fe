"""A second reading of the tables, from the words of the design: raw YAML in, a verdict for every candidate out.

It shares no code with attnroute: every set is listed out (up to LIMIT), every row tested one by one. A question (`ask`)
is a plain dict: a value for every step and option, None where it is free. 200 lines at most, to be read whole."""
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

FEATURES = "lse window softcap noncausal alibi mask sinks varlen per_head_scales batch_invariance".split()
STEPS = "kind phase storage kv head_dim latent rope nope q_len lse dcp group_ratio q_heads q_heads_gathered".split()
STEPS += ["topk", *FEATURES[1:], "layout", "cuda_graph", "q", "page", "evidence", "env", "call"]
DIMS = [step for step in STEPS if step not in [*FEATURES, "kv", "q", "evidence", "env", "call"]]
CODES = {step: step.replace("_", "-") for step in STEPS} | dict.fromkeys(("latent", "rope", "nope"), "head-dim")
CODES |= {"kv": "kv-dtype", "q": "q-dtype", "page": "page-size", "q_heads_gathered": "q-heads"}
LEVELS, NAMED, LIMIT = ("none", "uniform1", "uniform", "always"), ("kind", "phase", "storage", "layout"), 4096
EVIDENCE = ("capture", "compiled", "source", "report", "claimed", "inferred")
STRENGTHS = ("measured", *EVIDENCE[1:])
OMITTED = {"kind": "gqa", "q_len": 1, "topk": None, "layout": "unknown", "cuda_graph": "unknown"}  # the rest: any
UNPROVEN, NEVER = {"status": "undeclared", "code": "undeclared"}, {"status": "rejected", "code": "arch"}
Item, V = dict[str, Any], cache(Version)
public = cache(lambda version: version if version.startswith("git+") else Version(version).public)
@cache
def members(dim: str, *parts: Any) -> frozenset[Any]:
    """The set that a dimension's value stands for: each part `64`, `16..256/16` or `16..`, or a pair of those."""
    if dim in (*NAMED, "cuda_graph") or parts == (None,):
        return frozenset(LEVELS[: LEVELS.index(parts[0]) + 1] if dim == "cuda_graph" else parts)
    found: set[Any] = set()
    for both in ("1.." if part == "any" else str(part) for part in parts):
        sides = [re.fullmatch(r"(\d+)(\.\.)?(\d*)/?(\d*)", text).groups() for text in both.split("x")]
        spans = [range(int(lo), int(hi or (LIMIT if dots else lo)) + 1, int(step or 1)) for lo, dots, hi, step in sides]
        found |= {(a, b) for a in spans[0] for b in (spans[1:] or [(a,)])[0]} if dim == "head_dim" else {*spans[0]}
    return frozenset(found)
@cache
def within(bounds: str, version: str) -> bool:
    if "git+" in bounds + version:
        return bounds == version
    lo, _, hi = bounds.partition("..")
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
    kept = {key: value for key, value in under.items() if key not in ("evidence", "row", "package", "seen", "like")}
    added = {key: under[key] | over[key] for key in ("features", "env") if key in under and key in over}
    return kept | over | added | {"exclusions": under.get("exclusions", []) + over.get("exclusions", [])}

class Tables:
    """All tables, `like` and `mirrors` laid flat. A row's or box's `sets` has what the steps compare with."""
    def __init__(self, folder: Path) -> None:
        files = [*folder.glob("arch/*.yaml"), folder / "kernels.yaml", folder / "calls.yaml"]
        self.raw = {p.stem: yaml.load(p.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) for p in files}
        self.kernels, calls = self.raw.pop("kernels")["kernels"], self.raw.pop("calls")["calls"]
        self.when = {name: {*(call.get("when") or ())} for name, call in calls.items()}
        meets = [(name, call["meets"]) for name, call in calls.items() if "meets" in call]
        self.supplied = {m["feature"]: name for name, m in meets if "feature" in m}
        casts = [(name, *m["q_dtype"].values()) for name, m in meets if "q_dtype" in m]
        self.casts = [(name, a, b) for name, sources, targets in casts for a in sources for b in targets]
        self.rows = {a: [self.row(a, k, r) for k, r in self.items(a, "kernels", "row")] for a in self.raw}
        self.traps = {a: [self.box(k, t, t["trap"]) for k, t in self.items(a, "traps", "trap")] for a in self.raw}
    def items(self, arch: str, section: str, key: str) -> list[tuple[str, Item]]:
        under = self.items(self.raw[arch]["mirrors"], section, key) if "mirrors" in self.raw[arch] else ()
        flat = {(kernel, item[key]): item | {"evidence": []} for kernel, item in under}
        for kernel, item in ((k, item) for k, items in self.raw[arch].get(section, {}).items() for item in items):
            like = self.like(item["like"]) if "like" in item else flat.get((kernel, item[key]), {})
            every = [e for e in like.get("evidence", ()) if e.get("every_arch")]
            named = {k: like[k] for k in ("package", "seen") if k in like and "like" not in item}
            flat[kernel, item[key]] = lay(like, named | item | {"evidence": item.get("evidence", []) + every})
        return [(kernel, item) for (kernel, _), item in flat.items()]
    def like(self, ref: str) -> Item:
        *arch, kernel, name = ref.split("/")
        rows = self.items(arch[0], "kernels", "row") if arch else [(kernel, r) for r in self.kernels[kernel]["rows"]]
        item = next(row for k, row in rows if (k, row["row"]) == (kernel, name))
        return lay(self.like(item["like"]), item) if "like" in item and not arch else item
    def sets(self, dim: str, value: Any) -> Any:
        if dim not in FEATURES:
            return members(dim, *value) if isinstance(value, list) else members(dim, value)
        asked = [True, *(value if isinstance(value, list) else ("fp16", "bf16", "fp32"))] if value else []
        return {*asked, *([] if value == "required" and dim not in self.supplied else [False])}
    def box(self, kernel: str, item: Item, name: str, versions: str = "") -> Item:
        sets = {"kind": members("kind", *self.kernels[kernel]["kinds"])}  # unless it says otherwise
        sets |= {dim: self.sets(dim, v) for dim, v in item["where"].items() if dim not in ("features", "dtypes")}
        sets |= {dim: {bool(v)} for dim, v in item["where"].get("features", {}).items()}
        sets |= {"kv": item["where"]["dtypes"]} if "dtypes" in item["where"] else {}
        versions = item.get("versions") or versions or next(iter(item["package"].values()))
        return item | {"sets": sets, "kernel": kernel, "name": name, "versions": versions}
    def row(self, arch: str, kernel: str, item: Item) -> Item:
        (versions,) = item["package"].values()
        said = {dim: item.get(dim, OMITTED.get(dim, "any")) for dim in DIMS} | dict.fromkeys(FEATURES, "unknown")
        said |= item.setdefault("features", {})
        sets = {dim: self.sets(dim, value) for dim, value in said.items() if value != "unknown"}
        proof = min((n for e in item.get("evidence", ()) for n, kind in enumerate(EVIDENCE) if kind in e), default=5)
        sets |= {"kv": {kv for kvs in item["dtypes"].values() for kv in kvs}, "evidence": STRENGTHS[proof:]}
        holes = [self.box(kernel, hole, item["row"], versions) for hole in item.get("exclusions", ())]
        named = {"kernel": kernel, "id": f"{arch}/{kernel}/{item['row']}", "versions": versions, "proof": proof}
        return item | named | {"sets": sets, "holes": holes, "seen": frozenset(map(public, item["seen"]))}
    def reads(self, ask: Item, own: list[str]) -> list[str]:
        """The query dtypes that a kernel may be given: the model's own, then those a cast reaches."""
        return own + [to for call, a, to in self.casts if a in own and to not in own and call not in ask["cannot"]]
    def state(self, row: Item, step: str, ask: Item) -> bool | None:
        """Whether a row serves one step of a question; None where nobody looked."""
        features, need = ask["features"], row.get("env", {})
        if step == "q":
            able = row["dtypes"] if ask["q"] is ask["kv"] is None else self.reads(ask, ask["own"])
            return any(q in row["dtypes"] and ask["kv"] in (None, *row["dtypes"][q]) for q in able)
        if step == "env":
            known = [(k, have, need[k]) for k, have in ask["env"].items() if k in need]
            return all(within(wants, public(have)) if k == "cuda" else have or not wants for k, have, wants in known)
        if step == "call":
            must = {c for c in row.get("call", ()) if not self.when[c] or self.when[c] & {*features}}
            must |= {c for f, c in self.supplied.items() if row["features"].get(f) == "required" and f not in features}
            return not must & {*ask["cannot"]}
        asked = features.get(step, False) if step in FEATURES else ask[step]
        if (asked is None and step != "topk") or step not in row["sets"]:
            return True if not asked else None
        return asked in row["sets"][step]
    def met(self, box: Item, rows: list[Item], ask: Item) -> list[str] | None:
        """The free dimensions that a hole or trap still depends on (none: it is hit), or None if it is missed."""
        free = [dim for dim in box["sets"] if dim in DIMS and ask[dim] is None and dim != "topk"]
        for dim, held in ((dim, held) for dim, held in box["sets"].items() if dim not in free):
            if dim == "kv":  # by the query dtype that the kernel would be given for each model dtype
                for own in ask["own"]:
                    fits = [q for q in self.reads(ask, [own]) for r in rows if ask["kv"] in r["dtypes"].get(q, ())]
                    if ask["kv"] not in held.get([*fits, own][0], ()):
                        return None
            elif (dim in ask["features"] if dim in FEATURES else ask[dim]) not in held:
                return None
        return free
    def worst(self, boxes: list[Item]) -> Item:
        first = {"raises": 1, "unknown": 2}  # what silently goes wrong or crashes is told before these
        box = min(boxes, key=lambda b: (first.get(b["outcome"], 0), b["name"], b["why"]))
        status = {"raises": "rejected", "unknown": "undeclared"}.get(box["outcome"], "known-wrong")
        last = CODES[max(box["sets"], key=STEPS.index)]
        return {"status": status, "code": box.get("code") or last if status == "rejected" else status}
    def fit(self, row: Item, traps: list[Any], version: str, ask: Item) -> tuple[list[Item], Any, Item]:
        """What stands against a row that holds the question, its rank, and its answer."""
        holes = [h for h in row["holes"] if h["outcome"] != "unknown" or not ask["allow_unknown"]]
        cuts = [(hole, free) for hole in holes if (free := self.met(hole, [row], ask)) is not None] + traps
        cuts = [(box, free) for box, free in cuts if len(free) < 2 and within(box["versions"], version)]
        left = {dim: row["sets"].get(dim, {None}) for dim in DIMS}
        for dim, box in ((free[0], box) for box, free in cuts if free):
            left[dim] = left[dim] - box["sets"][dim]
        fits = [q for q in self.reads(ask, ask["own"]) if ask["kv"] in row["dtypes"].get(q, ())][:1]
        rank = (None in around(row["seen"], version), row["proof"], not {*fits} <= {*ask["own"]}, row["row"])
        pages = left["page"] if ask["page"] is None else frozenset([ask["page"]])
        answer = {"status": "accepted", "code": None, "pages": pages, "q": fits, "row": row}
        return [box for box, free in cuts if not free or not left[free[0]]], rank, answer
    def at(self, tested: list[Any], hit: list[Any], version: str, ask: Item) -> Item:
        """The answer of the rows, exclusions and traps that hold exactly this version."""
        if traps := [box for box, free in hit if not free and within(box["versions"], version)]:
            return self.worst(traps) | {"trap": True}
        mine = [(row, states) for row, states in tested if within(row["versions"], version)]
        refused: list[Item] = []
        for unsure in (False, True):
            able = [row for row, states in mine if False not in states and (unsure or None not in states)]
            fits = [self.fit(row, hit, version, ask) for row in able]
            if clear := [(rank, answer) for boxes, rank, answer in fits if not boxes]:
                return min(clear, key=lambda c: c[0])[1] | (UNPROVEN if unsure and not ask["allow_unknown"] else {})
            refused += [self.worst([box for boxes, _, _ in fits for box in boxes])] if able else []
            if refused and not ask["allow_unknown"]: break  # noqa: E701
        stop = max(([*states, False].index(False) for _, states in mine or tested), default=len(STEPS))
        return [*refused, {"status": "rejected", "code": [*map(CODES.get, STEPS), "package-version"][stop]}][0]
    def judge(self, key: tuple[str, str], arch: str, version: str | None, ask: Item) -> Item:
        """Status, code of the reason, pages and row for one candidate of an installed version."""
        rows, traps = ([i for i in t[arch] if (i["kernel"], *i["package"]) == key] for t in (self.rows, self.traps))
        if version is None or not (rows or traps):
            return {"status": "not-considered", "code": ask["absent"]} if version is None else NEVER
        tested: list[tuple[Item, list[bool | None]]] = [(row, []) for row in rows]
        for row, states in tested:
            while len(states) < len(STEPS) and states[-1:] != [False]:
                states.append(self.state(row, STEPS[len(states)], ask))
        hit = [(trap, free) for trap in traps if (free := self.met(trap, rows, ask)) is not None]
        here, sure = self.at(tested, hit, version, ask), True
        seen, live = frozenset().union(*(r["seen"] for r in rows)), [r for r in rows if within(r["versions"], version)]
        below, above = around(seen, version)
        if "trap" not in here and live and version not in seen and (above or not below):
            near = [self.at(tested, hit, v, ask) for v in (below, above)] if below and above else [{}]
            sure = all(n.get(k) == here.get(k) for n in near for k in ("status", "pages", "q"))
        elif here["status"] == "accepted":  # the row itself must have been looked at near this version
            below, above = around(here["row"]["seen"], version)
            sure = below is not None and (above is not None or not ask["strict_versions"])
        return here if sure or (here["status"] == "accepted" and ask["allow_unknown"]) else UNPROVEN
    def answer(self, arch: str, ask: Item, packages: dict[str, str], complete: bool = False) -> dict[Any, Item]:
        """The verdict of every candidate, by (kernel, package)."""
        ask = ask | {"q_heads_gathered": ask["q_heads"] and ask["q_heads"] * ask["dcp"]}
        ask |= {"features": ask["features"] | ({"lse": True} if ask["dcp"] > 1 else {})}
        ask |= {"own": ["bf16", "fp16"] if ask["q"] is None else [ask["q"]]}
        ask |= {"absent": "package-missing" if complete else "not-considered"}
        versions = {name: public(version) for name, version in packages.items()}
        pairs = [(kernel, provider) for kernel, entry in self.kernels.items() for provider in entry["providers"]]
        return {key: self.judge(key, arch, versions.get(key[1]), ask) for key in pairs}
