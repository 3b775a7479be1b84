"""Float64 references for family ``verify``: the decision tree of each row of a call.

Rules and error model stand in :mod:`waveproof.kernels.operators.verify`. The law that a tree implies is checked by a
second method in ``selftest``: with draft tokens summed over, the tokens of a block follow the target's joint law
(Leviathan et al., arXiv 2211.17192, Theorem 1; Sun et al., arXiv 2403.10444, Theorem 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from waveproof.golden.references import renorm
from waveproof.golden.references.decisions import COIN_GRID, Choice, Floats, Node, Open, Outcome
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.renorm import UNIT_ROUNDOFF as U
from waveproof.kernels.operators.renorm import gamma, summation_depth

DIVISION = 5.0 * U
"""Relative error of a float32 division: 2.5 ulp (OpenCL C 3.0, section 7.4), an ulp being up to two unit roundoffs."""

STEP = U + DIVISION
"""Of a product and a division."""


def decision(call: Call, row: int) -> Node:
    """The decision tree of one row of a call; coins in the call's order, the final coin last.

    Args:
        call: a call of one of the family's operators that take coins.
        row: its row.

    Raises:
        KeyError: an operator that takes no coins.
    """
    return _TREES[call.operator](call, row)


def coins_of(call: Call, row: int) -> list[float]:
    """The coins of one row, the final one last."""
    if call.operator == "tree_verify_greedy":
        return []
    return [*call.tensor("coins")[row].double().tolist(), float(call.tensor("final_coins")[row])]


def seeded_decision(call: Call, row: int) -> Node:
    """The tree of one row of ``seeded_chain_verify``, as if it were given coins: its law is that of the outcome."""
    laws = {
        name: torch.softmax(call.tensor(f"{name}_logits")[row].double() / call.tensor(temperature)[row], -1).numpy()
        for name, temperature in (("target", "temperature"), ("draft", "draft_temperature"))
    }
    candidates = call.tensor("candidates")[row].tolist()
    target = [Law(p, np.zeros_like(p), False) for p in laws["target"]]
    return Chain(tuple(candidates[1:]), target, laws["draft"], len(candidates) - 1).tree(False)


# What is drawn from ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """A row of target probabilities and how far the implementation's own may be off."""

    p: Floats
    error: Floats
    """Absolute; zeros where probabilities are given."""
    degenerate: bool


def _given(rows: torch.Tensor) -> list[Law]:
    laws = []
    for row in rows.double().numpy():
        with np.errstate(invalid="ignore"):
            sound = bool(np.isfinite(row).all() and (row >= 0.0).all() and row.sum() > 0.0)
        laws.append(Law(row, np.zeros_like(row), not sound))
    return laws


def _from_logits(call: Call, row: int) -> list[Law]:
    """softmax, top-k and top-p of the logits of each slot.

    A row whose kept set is not certain, or depends on a tie rule, promises nothing here: family ``renorm`` judges it.
    """
    logits = call.tensor("target_logits")[row]
    slots = logits.shape[0]
    filters = {name: call.tensor(name)[row : row + 1].expand(slots) for name in ("temperature", "top_k", "top_p")}
    filtering = Call("target_probs", {"logits": logits, **filters, "path": "dense"})
    expected, other = (renorm.reference(filtering, rule) for rule in ("threshold", "exact-k"))
    unsure = (expected.certain != expected.possible) | (expected.certain != other.certain)
    open_rows = expected.degenerate | unsure.any(-1)
    values = expected.value
    errors = values * expected.tolerance
    return [Law(values[at].numpy(), errors[at].numpy(), bool(open_rows[at])) for at in range(slots)]


# Steps ----------------------------------------------------------------------------------------------------------------


def _on_grid(*values: Floats | float) -> bool:
    """Whether all are multiples of 2^-12: 12 bits, and 11 of a coin of the grid, are 23 of float32's 24."""
    grid = 2.0 * COIN_GRID
    return all(bool((np.asarray(value) * grid == np.floor(np.asarray(value) * grid)).all()) for value in values)


def _power_of_two(value: float) -> bool:
    return value > 0.0 and np.frexp(value)[0] == 0.5


def _accept(
    coin: int, edge: float, slack: float, exact: bool, stands: Callable[[], Node], falls: Callable[[], Node], name: str
) -> Node:
    """Below the edge the token stands; a step of no width is no step."""
    if edge <= 0.0:
        return falls()
    if edge - slack >= 1.0:
        return stands()
    edges, slacks = np.array([min(edge, 1.0)]), np.array([slack])
    return Choice(coin, edges, slacks, exact, lambda branch: falls() if branch else stands(), name)


def _draw(coin: int, accepted: tuple[int, ...], weights: Floats, error: Floats, exact: bool, fallback: Floats) -> Node:
    """One more token in proportion to the weights, which are off by ``error`` each beyond their own rounding."""
    error = error + U * np.abs(weights)
    possible = np.flatnonzero(weights + error > 0.0)
    weights = np.maximum(weights, 0.0)
    total = float(weights.sum())
    if total <= float(error.sum()) or not len(possible):
        last = tuple(np.flatnonzero(fallback > 0.0).tolist())
        return Open("the residual is empty within rounding", accepted, last)
    kept, kept_error = weights[possible], error[possible]
    cumulative = np.cumsum(kept) / total
    depth = min(summation_depth(len(weights)), max(len(possible) - 1, 0))
    slack = (np.cumsum(kept_error) + kept_error.sum() * cumulative) / total
    slack += (2.0 * gamma(depth) + STEP) * cumulative
    name = f"token after {len(accepted)} accepted"
    exact = exact and _on_grid(kept) and _power_of_two(total)

    def follow(branch: int) -> Node:
        return Outcome(len(accepted), (*accepted, int(possible[branch])))

    if len(possible) == 1:
        return follow(0)
    return Choice(coin, cumulative[:-1], slack[:-1], exact, follow, name)


def _proposal(q: Floats) -> Floats:
    """q where it can be a probability, else 0."""
    with np.errstate(invalid="ignore"):
        return np.where((q >= 0.0) & (q <= 1.0), q, 0.0)


# Chains ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """A row of chain verification."""

    drafts: tuple[int, ...]
    target: Sequence[Law]
    q: Floats
    """[S - 1, V], as given."""
    limit: int
    """Draft tokens that may stand at most: fewer than there are where the window was cut off."""

    def tree(self, block: bool) -> Node:
        """The decision tree of token by token or of block verification."""
        return self._block(len(self.drafts), self._prefixes()) if block else self._token(0)

    def _token(self, accepted: int) -> Node:
        """Token by token (arXiv 2211.17192, Algorithm 1)."""
        if accepted == len(self.drafts):
            return self._last(accepted, 1.0, 0.0)
        law, token = self.target[accepted], self.drafts[accepted]
        if law.degenerate:
            return Open(f"target row {accepted} promises nothing")
        p, q = float(law.p[token]), float(self.q[accepted, token])
        edge = p / q if 0.0 < q <= 1.0 else 0.0
        slack = STEP * edge + (float(law.error[token]) / q if edge else 0.0)
        exact = not law.error.any() and _on_grid(p) and _power_of_two(q)

        def stands() -> Node:
            if accepted == self.limit:
                return Outcome(accepted, self.drafts[: accepted + 1])
            return self._token(accepted + 1)

        falls = partial(self._last, accepted, 1.0, 0.0)
        return _accept(accepted, edge, slack, exact, stands, falls, f"draft token {accepted} (p/q = {edge:.9g})")

    def _prefixes(self) -> list[tuple[float, float]]:
        """Clamped prefix ratio of each length from 1 on, and how far it may be off, relatively."""
        prefix, slip, found = 1.0, 0.0, []
        for step, token in enumerate(self.drafts):
            law, q = self.target[step], float(self.q[step, token])
            p = float(law.p[token])
            ratio = prefix * p / q if 0.0 < q <= 1.0 else 0.0
            slip += STEP + (float(law.error[token]) / p if p > 0.0 else 0.0)
            prefix = min(ratio, 1.0)
            if ratio * (1.0 - slip) >= 1.0:
                slip = 0.0  # clamped, whatever the roundings were
            found.append((prefix, slip))
        return found

    def _block(self, length: int, prefixes: list[tuple[float, float]]) -> Node:
        """Block verification (arXiv 2403.10444, Algorithm 2), from the longest prefix down."""
        if any(law.degenerate for law in self.target):
            return Open("a row of the target promises nothing")
        if length == 0:
            return self._last(0, 1.0, 0.0)
        kept, slip = prefixes[length - 1]
        edge, slack = kept, slip * kept
        if length < len(self.drafts) and 0.0 < kept < 1.0:
            law, q = self.target[length], _proposal(self.q[length])
            mass = float(np.maximum(kept * law.p - q, 0.0).sum())
            mass_slack = (slip + 2.0 * U) * kept + kept * float(law.error.sum())
            mass_slack += gamma(summation_depth(len(q)) + 1) * mass
            whole = mass + 1.0 - kept
            edge = mass / whole
            slack = ((1.0 - kept) * mass_slack + mass * slip * kept) / whole**2 + (STEP + 2.0 * U) * edge
        stands = partial(self._last, length, kept if length < len(self.drafts) else 1.0, slip)
        falls = partial(self._block, length - 1, prefixes)
        return _accept(length - 1, edge, slack, False, stands, falls, f"prefix of {length} (h = {edge:.9g})")

    def _last(self, accepted: int, scale: float, slip: float) -> Node:
        """The token after the accepted ones: from the target behind a whole chain, else from the residual."""
        if accepted > self.limit:
            return Outcome(self.limit, self.drafts[: self.limit + 1])
        law, stand = self.target[accepted], self.drafts[:accepted]
        if law.degenerate:
            return Open(f"target row {accepted} promises nothing", stand)
        final, exact = len(self.drafts), not law.error.any() and not slip
        if accepted == len(self.drafts):
            return _draw(final, stand, law.p, law.error, exact, law.p)
        q = _proposal(self.q[accepted])
        error = scale * law.error + ((slip + U) * scale * law.p if slip else 0.0)
        return _draw(final, stand, scale * law.p - q, error, exact and _on_grid(law.p, q), law.p)


def _chain_verify(call: Call, row: int) -> Node:
    candidates = call.tensor("candidates")[row].tolist()
    chain = Chain(
        tuple(candidates[1:]),
        _given(call.tensor("target_probs")[row]),
        call.tensor("draft_probs")[row].double().numpy(),
        len(candidates) - 1,
    )
    return chain.tree(bool(call.arguments["block_verification"]))


def _accept_sampling(call: Call, row: int) -> Node:
    candidates = call.tensor("candidates")[row].tolist()
    chain = Chain(
        tuple(candidates[1:]),
        _from_logits(call, row),
        call.tensor("draft_probs")[row].double().numpy(),
        int(call.tensor("verify_lens")[row]) - 1,
    )
    return chain.tree(bool(call.arguments["block_verification"]))


# Trees ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A row of target-only verification."""

    candidates: tuple[int, ...]
    first_child: tuple[int, ...]
    next_sibling: tuple[int, ...]
    target: Sequence[Law]
    threshold_single: float
    threshold_acc: float
    depth: int

    def node(self, at: int = 0, accepted: tuple[int, ...] = ()) -> Node:
        """What happens after node ``at`` has been accepted."""
        law = self.target[at]
        if law.degenerate:
            return Open(f"target row {at} promises nothing")
        if len(accepted) == self.depth - 1:
            return _draw(len(self.candidates), accepted, law.p, law.error, not law.error.any(), law.p)
        edges, slacks, taken, refused, mass, error = [], [], [], [], 0.0, 0.0
        sure = False
        for child in self._children(at):
            token = self.candidates[child]
            p = float(law.p[token])
            mass, error = mass + p, error + float(law.error[token])
            if p <= 0.0:
                refused.append(token)
                continue
            unsure = float(law.error[token])
            if abs(p - self.threshold_single) <= unsure and unsure > 0.0 and self.threshold_single < 1.0:
                return Open(f"p of node {child} lies on threshold_single within rounding")
            if p - unsure >= self.threshold_single:
                taken.append(child)
                sure = True
                break
            edge = mass / self.threshold_acc
            edges.append(min(edge, 1.0))
            slacks.append((gamma(len(edges) + 1) + STEP) * edge + error / self.threshold_acc)
            taken.append(child)
            if edge - slacks[-1] >= 1.0:
                sure = True
                edges.pop()
                slacks.pop()
                break
        exact = not law.error.any() and _on_grid(law.p) and _power_of_two(self.threshold_acc)

        def follow(branch: int) -> Node:
            if branch < len(taken):
                child = taken[branch]
                return self.node(child, (*accepted, self.candidates[child]))
            rest = law.p.copy()
            rest[[*refused, *(self.candidates[child] for child in taken)]] = 0.0
            return _draw(len(self.candidates), accepted, rest, np.where(rest > 0.0, law.error, 0.0), exact, law.p)

        if not edges:
            return follow(0)
        assert sure or len(edges) == len(taken)
        return Choice(at, np.array(edges), np.array(slacks), exact, follow, f"children of node {at}")

    def greedy(self, predict: Sequence[int], at: int = 0, accepted: tuple[int, ...] = ()) -> Outcome:
        """What the target's argmax after each node decides."""
        if len(accepted) < self.depth - 1:
            for child in self._children(at):
                if self.candidates[child] == predict[at]:
                    return self.greedy(predict, child, (*accepted, predict[at]))
        return Outcome(len(accepted), (*accepted, predict[at]))

    def _children(self, at: int) -> list[int]:
        children = []
        child = self.first_child[at]
        while child != -1:
            children.append(child)
            child = self.next_sibling[child]
        return children


def _links(call: Call, row: int) -> list[tuple[int, ...]]:
    names = ("candidates", "retrieve_next_token", "retrieve_next_sibling")
    return [tuple(call.tensor(name)[row].tolist()) for name in names]


def _thresholds(call: Call) -> tuple[float, float]:
    """As float32 has them: they are compared with probabilities of that type."""
    single, acc = (float(np.float32(call.number(name))) for name in ("threshold_single", "threshold_acc"))
    return single, acc


def _target_only_verify(call: Call, row: int) -> Node:
    laws = _given(call.tensor("target_probs")[row])
    candidates, first_child, next_sibling = _links(call, row)
    return Tree(candidates, first_child, next_sibling, laws, *_thresholds(call), int(call.number("depth"))).node()


def _tree_verify_greedy(call: Call, row: int) -> Node:
    candidates, first_child, next_sibling = _links(call, row)
    tree = Tree(candidates, first_child, next_sibling, (), 1.0, 1.0, int(call.number("depth")))
    return tree.greedy(call.tensor("target_predict")[row].tolist())


def _target_only_accept_sampling(call: Call, row: int) -> Node:
    candidates = tuple(call.tensor("candidates")[row].tolist())
    slots = len(candidates)
    children = (*range(1, slots), -1)
    laws = _from_logits(call, row)
    return Tree(candidates, children, (-1,) * slots, laws, *_thresholds(call), slots).node()


_TREES: dict[str, Callable[[Call, int], Node]] = {
    "chain_verify": _chain_verify,
    "accept_sampling": _accept_sampling,
    "target_only_verify": _target_only_verify,
    "tree_verify_greedy": _tree_verify_greedy,
    "target_only_accept_sampling": _target_only_accept_sampling,
}
