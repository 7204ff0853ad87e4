"""recognize_rope: rotations in all their spellings become the op, near misses stay."""

import pytest

from npusim.passes.recognize_rope import recognize_rope

SIZE = 8


def tables(draft, batch=1, size=SIZE, dtype="float32"):
    angles = [draft.x(batch, 3, size, name=name, dtype=dtype) for name in ("cos", "sin")]
    return [draft.call("aten.unsqueeze.default", a, dim=1) for a in angles]


def cut(draft, x, start, end, step=1):
    return draft.call("aten.slice.Tensor", x, dim=3, start=start, end=end, step=step)


def halves(draft, x, size=SIZE):
    back = draft.call("aten.neg.default", cut(draft, x, size // 2, 9223372036854775807))
    return draft.call("aten.cat.default", back, cut(draft, x, 0, size // 2), tensors=2, dim=-1)


def alternating(draft, x, join):
    parts = draft.call("aten.neg.default", cut(draft, x, 1, SIZE, 2)), cut(draft, x, 0, SIZE, 2)
    if join == "cat":
        parts = [draft.call("aten.unsqueeze.default", p, dim=4) for p in parts]
    pairs = draft.call(f"aten.{join}.default", *parts, tensors=2, dim=-1)
    return draft.call("aten.view.default", pairs, size=draft.types[x].shape)


def turned(draft, x, rotated, cos, sin, swap=False):
    terms = [draft.call("aten.mul.Tensor", *pair) for pair in
             (((x, cos), (rotated, sin)) if not swap else ((sin, rotated), (cos, x)))]  # fmt: skip
    return draft.call("aten.add.Tensor", *terms, alpha=1)


def heads(draft, batch=1, dtype="float32", size=SIZE):
    return draft.call("aten.permute.default", draft.x(batch, 3, 2, size, dtype=dtype),
                      dims=(0, 2, 1, 3))  # fmt: skip


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_halves(draft, check_pass, swap, batch):
    x = heads(draft, 2)
    y = turned(draft, x, halves(draft, x), *tables(draft, batch), swap)
    check_pass(recognize_rope, draft.graph(y))


@pytest.mark.parametrize("join", ["cat", "stack"])
def test_interleaved(draft, check_pass, join):
    x = heads(draft)
    y = turned(draft, x, alternating(draft, x, join), *tables(draft))
    check_pass(recognize_rope, draft.graph(y))


def test_first_elements_only(draft, check_pass):
    x = heads(draft, size=12)
    first, rest = cut(draft, x, 0, SIZE), cut(draft, x, SIZE, 12)
    y = turned(draft, first, halves(draft, first), *tables(draft))
    y = draft.call("aten.cat.default", y, rest, tensors=2, dim=-1)
    check_pass(recognize_rope, draft.graph(y))


def test_in_float32_between_conversions(draft, check_pass):
    x = draft.call("aten._to_copy.default", heads(draft, dtype="bfloat16"), dtype="float32")
    y = turned(draft, x, halves(draft, x), *tables(draft))
    y = draft.call("aten._to_copy.default", y, dtype="bfloat16")
    check_pass(recognize_rope, draft.graph(y))


@pytest.mark.parametrize("converted", [True, False])
def test_half_precision_by_tables_in_float32(draft, check_pass, converted):
    x = heads(draft, dtype="bfloat16")
    parts = x, halves(draft, x)
    if converted:
        parts = [draft.call("aten._to_copy.default", p, dtype="float32") for p in parts]
    y = turned(draft, *parts, *tables(draft))
    check_pass(
        recognize_rope, draft.graph(draft.call("aten._to_copy.default", y, dtype="bfloat16"))
    )


def test_a_result_in_float32_of_half_precision_stays(draft, check_pass):
    x = heads(draft, dtype="bfloat16")
    check_pass(recognize_rope, draft.graph(turned(draft, x, halves(draft, x), *tables(draft))))


def test_tables_without_a_batch_and_expanded(draft, check_pass):
    x = heads(draft, 2)
    angles = [draft.x(3, SIZE, name=name) for name in ("cos", "sin")]
    angles = [draft.call("aten.expand.default", a, size=(2, 2, 3, SIZE)) for a in angles]
    check_pass(recognize_rope, draft.graph(turned(draft, x, halves(draft, x), *angles)))


@pytest.mark.parametrize("change", ["sign", "other", "uneven", "per_head", "read"])
def test_near_misses_stay(draft, check_pass, change):
    x = heads(draft)
    cos, sin = tables(draft)
    rotated = halves(draft, draft.x(1, 2, 3, SIZE, name="z") if change == "other" else x)
    if change == "sign":
        first, second = cut(draft, x, 0, SIZE // 2), cut(draft, x, SIZE // 2, SIZE)
        rotated = draft.call("aten.cat.default", second, first, tensors=2, dim=-1)
    elif change == "uneven":
        back = draft.call("aten.neg.default", cut(draft, x, 2, SIZE))
        rotated = draft.call("aten.cat.default", back, cut(draft, x, 0, 2), tensors=2, dim=-1)
    elif change == "per_head":
        cos = draft.x(1, 2, 3, SIZE, name="c")
    straight = draft.call("aten.mul.Tensor", x, cos)
    y = draft.call("aten.add.Tensor", straight, draft.call("aten.mul.Tensor", rotated, sin))
    check_pass(recognize_rope, draft.graph(y, *([straight] if change == "read" else [])))
