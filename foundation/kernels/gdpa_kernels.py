"""The Triton kernels of attention over jagged rows; `foundation.kernels.gdpa_triton` launches them.

A `..._at` is a pointer to the first number of a contiguous [rows, heads, width] tensor. Rows past a request's end are
read as zeros, which weigh nothing.
"""

# Arguments in capitals are constants of the compiled kernel, as Triton's own code writes them; a kernel has no types.
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# pyright: basic, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    """As `foundation.kernels.activation.activate_`."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "relu2":
        x = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "hardswish":
        x = x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0
    return x


@triton.jit
def _slope(x, ACTIVATION: tl.constexpr):
    """The derivative of `_activate`."""
    slope = x * 0.0 + 1.0
    if ACTIVATION == "relu":
        slope = tl.where(x > 0, slope, 0.0)
    elif ACTIVATION == "relu2":
        slope = 2.0 * tl.maximum(x, 0.0)
    elif ACTIVATION == "silu":
        slope = tl.sigmoid(x) * (1.0 + x * (1.0 - tl.sigmoid(x)))
    elif ACTIVATION == "gelu":
        slope = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    elif ACTIVATION == "hardswish":
        slope = tl.where(x < -3.0, 0.0, tl.where(x > 3.0, slope, x / 3.0 + 0.5))
    return slope


@triton.jit
def _places(first, stop, head, HEADS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr):
    """Places of one head's rows from `first` in a [rows, heads, width] tensor, and which of them there are."""
    rows = first + tl.arange(0, BLOCK)[:, None]
    columns = tl.arange(0, SPAN)[None, :]
    return (rows * HEADS + head) * WIDTH + columns, (rows < stop) & (columns < WIDTH)


@triton.jit
def _reach(start, num_others, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """From where to where the rows of the other side are within reach of a block."""
    low, high = start * 0, num_others
    if WINDOW >= 0:
        low = tl.maximum(start - WINDOW, 0) // BLOCK * BLOCK
        high = tl.minimum(start + BLOCK + WINDOW, num_others)
    return low, high


@triton.jit
def _seen(scores, query, key, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """[queries, keys] scores of blocks that begin at rows `query` and `key` of a request; 0 beyond the window."""
    if WINDOW >= 0:
        apart = key - query + tl.arange(0, BLOCK)[None, :] - tl.arange(0, BLOCK)[:, None]
        scores = tl.where((apart <= WINDOW) & (apart >= -WINDOW), scores, 0.0)
    return scores


@triton.jit
def forward(
    q_at,
    k_at,
    v_at,
    out_at,
    requests,
    starts,
    query_offsets,
    key_offsets,
    num_requests,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    KEY_SPAN: tl.constexpr,
    VALUE_SPAN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALE_IN: tl.constexpr,
    SCALE_OUT: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of queries of a request and head: its rows of the output."""
    request, start, head = tl.load(requests + tl.program_id(0)), tl.load(starts + tl.program_id(0)), tl.program_id(1)
    if request >= num_requests:
        return
    query, query_stop = tl.load(query_offsets + request), tl.load(query_offsets + request + 1)
    key, key_stop = tl.load(key_offsets + request), tl.load(key_offsets + request + 1)
    at, there = _places(query + start, query_stop, head, HEADS, KEY_WIDTH, KEY_SPAN, BLOCK)
    q = tl.load(q_at + at, mask=there, other=0.0)
    total = tl.zeros((BLOCK, VALUE_SPAN), dtype=SUM)
    low, high = _reach(start, key_stop - key, WINDOW, BLOCK)
    for other in range(low, high, BLOCK):
        at, there = _places(key + other, key_stop, head, HEADS, KEY_WIDTH, KEY_SPAN, BLOCK)
        k = tl.load(k_at + at, mask=there, other=0.0)
        at, there = _places(key + other, key_stop, head, HEADS, VALUE_WIDTH, VALUE_SPAN, BLOCK)
        v = tl.load(v_at + at, mask=there, other=0.0)
        scores = SCALE_IN * tl.dot(q, tl.trans(k), input_precision=PRECISION, out_dtype=SUM)
        weights = _activate(_seen(scores, start, other, WINDOW, BLOCK), ACTIVATION)
        total += tl.dot(weights.to(v.dtype), v, input_precision=PRECISION, out_dtype=SUM)
    at, there = _places(query + start, query_stop, head, HEADS, VALUE_WIDTH, VALUE_SPAN, BLOCK)
    tl.store(out_at + at, (SCALE_OUT * total).to(out_at.dtype.element_ty), mask=there)


@triton.jit
def backward_queries(
    q_at,
    k_at,
    v_at,
    gradient_at,
    dq_at,
    requests,
    starts,
    query_offsets,
    key_offsets,
    num_requests,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    KEY_SPAN: tl.constexpr,
    VALUE_SPAN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALE_IN: tl.constexpr,
    SCALE_OUT: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of queries of a request and head: its rows of dQ."""
    request, start, head = tl.load(requests + tl.program_id(0)), tl.load(starts + tl.program_id(0)), tl.program_id(1)
    if request >= num_requests:
        return
    query, query_stop = tl.load(query_offsets + request), tl.load(query_offsets + request + 1)
    key, key_stop = tl.load(key_offsets + request), tl.load(key_offsets + request + 1)
    at, there = _places(query + start, query_stop, head, HEADS, KEY_WIDTH, KEY_SPAN, BLOCK)
    q = tl.load(q_at + at, mask=there, other=0.0)
    at, there = _places(query + start, query_stop, head, HEADS, VALUE_WIDTH, VALUE_SPAN, BLOCK)
    gradient = tl.load(gradient_at + at, mask=there, other=0.0)
    total = tl.zeros((BLOCK, KEY_SPAN), dtype=SUM)
    low, high = _reach(start, key_stop - key, WINDOW, BLOCK)
    for other in range(low, high, BLOCK):
        at, there = _places(key + other, key_stop, head, HEADS, KEY_WIDTH, KEY_SPAN, BLOCK)
        k = tl.load(k_at + at, mask=there, other=0.0)
        at, there = _places(key + other, key_stop, head, HEADS, VALUE_WIDTH, VALUE_SPAN, BLOCK)
        v = tl.load(v_at + at, mask=there, other=0.0)
        scores = SCALE_IN * tl.dot(q, tl.trans(k), input_precision=PRECISION, out_dtype=SUM)
        back = SCALE_OUT * tl.dot(gradient, tl.trans(v), input_precision=PRECISION, out_dtype=SUM)
        back = _seen(back * _slope(scores, ACTIVATION), start, other, WINDOW, BLOCK)
        total += tl.dot(back.to(k.dtype), k, input_precision=PRECISION, out_dtype=SUM)
    at, there = _places(query + start, query_stop, head, HEADS, KEY_WIDTH, KEY_SPAN, BLOCK)
    tl.store(dq_at + at, (SCALE_IN * total).to(dq_at.dtype.element_ty), mask=there)


@triton.jit
def backward_keys(
    q_at,
    k_at,
    v_at,
    gradient_at,
    dk_at,
    dv_at,
    requests,
    starts,
    query_offsets,
    key_offsets,
    num_requests,
    HEADS: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    KEY_SPAN: tl.constexpr,
    VALUE_SPAN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALE_IN: tl.constexpr,
    SCALE_OUT: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of keys of a request and head: its rows of dK and dV."""
    request, start, head = tl.load(requests + tl.program_id(0)), tl.load(starts + tl.program_id(0)), tl.program_id(1)
    if request >= num_requests:
        return
    query, query_stop = tl.load(query_offsets + request), tl.load(query_offsets + request + 1)
    key, key_stop = tl.load(key_offsets + request), tl.load(key_offsets + request + 1)
    at, there = _places(key + start, key_stop, head, HEADS, KEY_WIDTH, KEY_SPAN, BLOCK)
    k = tl.load(k_at + at, mask=there, other=0.0)
    at, there = _places(key + start, key_stop, head, HEADS, VALUE_WIDTH, VALUE_SPAN, BLOCK)
    v = tl.load(v_at + at, mask=there, other=0.0)
    of_key = tl.zeros((BLOCK, KEY_SPAN), dtype=SUM)
    of_value = tl.zeros((BLOCK, VALUE_SPAN), dtype=SUM)
    low, high = _reach(start, query_stop - query, WINDOW, BLOCK)
    for other in range(low, high, BLOCK):
        at, there = _places(query + other, query_stop, head, HEADS, KEY_WIDTH, KEY_SPAN, BLOCK)
        q = tl.load(q_at + at, mask=there, other=0.0)
        at, there = _places(query + other, query_stop, head, HEADS, VALUE_WIDTH, VALUE_SPAN, BLOCK)
        gradient = tl.load(gradient_at + at, mask=there, other=0.0)
        scores = SCALE_IN * tl.dot(q, tl.trans(k), input_precision=PRECISION, out_dtype=SUM)
        weights = _activate(_seen(scores, other, start, WINDOW, BLOCK), ACTIVATION)
        of_value += tl.dot(tl.trans(weights.to(gradient.dtype)), gradient, input_precision=PRECISION, out_dtype=SUM)
        back = SCALE_OUT * tl.dot(gradient, tl.trans(v), input_precision=PRECISION, out_dtype=SUM)
        back = _seen(back * _slope(scores, ACTIVATION), other, start, WINDOW, BLOCK)
        of_key += tl.dot(tl.trans(back.to(q.dtype)), q, input_precision=PRECISION, out_dtype=SUM)
    at, there = _places(key + start, key_stop, head, HEADS, KEY_WIDTH, KEY_SPAN, BLOCK)
    tl.store(dk_at + at, (SCALE_IN * of_key).to(dk_at.dtype.element_ty), mask=there)
    at, there = _places(key + start, key_stop, head, HEADS, VALUE_WIDTH, VALUE_SPAN, BLOCK)
    tl.store(dv_at + at, (SCALE_OUT * of_value).to(dv_at.dtype.element_ty), mask=there)
