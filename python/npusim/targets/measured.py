"""What was fitted to measurements of a device: the schema of `architectures/<name>.toml`.

Units stand in names: `_us` are microseconds, `_per_us` is what is done in one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Winograd:
    """When a 3x3 convolution pays in Winograd's form, in multiply-adds and what takes as long.

    Attributes:
        least_channels: in and out, below which panels of 16 columns run half empty.
        transform_multiply_adds: of a transformed point and channel.
        direct_weights_pixels: pixels whose products take as long as fetching the direct form's
            weights.
        weights_tiles: tiles whose products take as long as fetching the transformed ones.
    """

    least_channels: int
    transform_multiply_adds: int
    direct_weights_pixels: int
    weights_tiles: int


@dataclass(frozen=True, slots=True)
class PyTorchCosts:
    """What a node costs where PyTorch runs it.

    Attributes:
        node_seconds: one operator called from its schema and checked.
        flops_per_second: float32 arithmetic of its matrix library.
        bytes_per_second: copies through memory.
    """

    node_seconds: float
    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Processors:
    """The multiprocessors of a GPU.

    Attributes:
        count: that a grid should fill.
        threads: that each holds at once.
        shared_bytes: of shared memory that blocks side by side may take on one.
        block_shared_bytes: that one block may take.
        clustered: processors that clusters of more than two blocks find at once.
        instructions_per_us: of all lanes of the device.
    """

    count: int
    threads: int
    shared_bytes: int
    block_shared_bytes: int
    clustered: int
    instructions_per_us: float


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """A tile of `linear` and `matmul`, and how long it takes.

    Attributes:
        rows, columns: of y.
        warps_m, warps_n: that share it; 0 where there are no tensor cores.
        stages: blocks of 64 along K in flight; 0 likewise.
        step_us: of a block of K on a processor that has other tiles as well.
        alone_step_us: of one on a processor that has not.
    """

    rows: int
    columns: int
    warps_m: int
    warps_n: int
    stages: int
    step_us: float
    alone_step_us: float


@dataclass(frozen=True, slots=True)
class Matmul:
    """Products of many rows in tiles, and of few by streams of weights.

    Attributes:
        tiles: on the tensor cores.
        float_tiles: of float32, whose steps are 16 along K.
        plain_tiles: by multiply-adds, likewise.
        start_steps, float_start_steps: steps that beginning and ending a tile take.
        combine_us: of a second launch, which adds partial sums up.
        partial_bytes_per_us: rate at which partial sums are written and read.
        tile_shared_bytes: of a processor, that tiles side by side take.
        stream_loads: of 16 bytes, that a lane of a stream does at most where warps can share K.
        many_streams: rows of W that fill the device though few warps share K.
        plain_stream_rows, quantized_stream_rows: rows of x up to which weights are streamed, of
            numbers that the tensor cores do not take, and of quantized weights.
    """

    tiles: tuple[MatmulTile, ...]
    float_tiles: tuple[MatmulTile, ...]
    plain_tiles: tuple[MatmulTile, ...]
    start_steps: int
    float_start_steps: int
    combine_us: float
    partial_bytes_per_us: float
    tile_shared_bytes: int
    stream_loads: int
    many_streams: int
    plain_stream_rows: int
    quantized_stream_rows: int


@dataclass(frozen=True, slots=True)
class TmaTile:
    """A tile of a product whose operands TMA copies, and the cluster that shares them.

    Attributes:
        rows: of x, 64 a warpgroup.
        columns: rows of W, for one output or two.
        share_rows: blocks of a cluster, with rows of their own, that take the same rows of W.
        share_columns: blocks, with columns of their own, that take the same rows of x.
        split_k: parts of K, one for each of so many blocks of a cluster.
        stages: blocks of K in flight.
        blocks_per_processor: that a processor should hold.
        copy_warp: whether a warp more has nothing to do but copies.
        persistent: whether a block takes one tile after the other.
    """

    rows: int
    columns: int
    share_rows: int
    share_columns: int
    split_k: int
    stages: int
    blocks_per_processor: int = 1
    copy_warp: bool = True
    persistent: bool = False


@dataclass(frozen=True, slots=True)
class TmaMatmul:
    """Products of many rows whose operands TMA copies.

    Attributes:
        tiles: to choose from: those that were the fastest of some product, and smaller ones for
            few columns.
        arriving_bytes_per_us: at one processor. all_arriving_bytes_per_us: at all of them.
        multiplications_per_us: of a processor.
        read_bytes_per_us: from memory.
        exchanged_bytes_per_us: of partial sums, between the blocks of a cluster.
        step_us: of a block of K at least.
        begin_us, end_us: to begin a launch, and to end a tile.
        gated_sum_us: more to end it, for each sum that a thread of a gated product has.
        exchange_us: with each block of a cluster.
    """

    tiles: tuple[TmaTile, ...]
    arriving_bytes_per_us: float
    all_arriving_bytes_per_us: float
    multiplications_per_us: float
    read_bytes_per_us: float
    exchanged_bytes_per_us: float
    step_us: float
    begin_us: float
    end_us: float
    gated_sum_us: float
    exchange_us: float


@dataclass(frozen=True, slots=True)
class OneOrder:
    """Products whose rows have the same bits in any number of them.

    Attributes:
        tiles: of many rows that leave room for blocks of the next launch, beside those of prompts.
        swapped_rows: up to which products of whole K are the fastest with W as first operand.
        processor_bytes_per_us: of W, that one processor reads at most.
        slices_us: where K is cut: to exchange sums at all. slice_us: with each slice.
        rooms_bytes: of shared memory that a block with W as first operand may take, the first that
            suffices: a processor holds three such blocks, of this launch or the next, or two.
        alone_bytes: that it takes in a launch of a block a processor, so that none takes three.
        sole_share: of the processors, as many blocks as launches have of which none takes two: two
            on one processor take longer than what other processors then do meanwhile is worth.
        sole_bytes: that a block of these takes at least, and sole_room_bytes: at most, in stages.
        in_flight_bytes: of W, on the way to a processor, that keep memory busy.
        joined_rows: up to which a product's tiles turn and append its columns; turning_us: that a
            launch of its own takes for that.
    """

    tiles: tuple[TmaTile, ...]
    swapped_rows: int
    processor_bytes_per_us: float
    slices_us: float
    slice_us: float
    rooms_bytes: tuple[int, ...]
    alone_bytes: int
    sole_share: float
    sole_bytes: int
    sole_room_bytes: int
    in_flight_bytes: int
    joined_rows: int
    turning_us: float


@dataclass(frozen=True, slots=True)
class ConvTile:
    """A tile of `conv` on the tensor cores, and how long it takes.

    Attributes:
        rows, columns: positions and channels of y.
        warps_m, warps_n: that share it.
        stages: blocks of 64 along K in flight.
        lags: whether a block of K is multiplied while the next one starts.
        step_us: of a block of K on a processor that has other tiles as well.
        alone_step_us: of one on a processor that has not.
        ends_us: what a tile takes besides; a residual adds to it.
    """

    rows: int
    columns: int
    warps_m: int
    warps_n: int
    stages: int
    lags: bool
    step_us: float
    alone_step_us: float
    ends_us: float


@dataclass(frozen=True, slots=True)
class Patches:
    """How long convolutions of few channels take, whose blocks gather what a tile's windows cover.

    Attributes:
        weights_us: of a block, to fetch 16 lines of weights, and to wait for the multiplication.
        wait_us: of a round of loads, which nothing hides.
        load_us: of a line's load by a warp, of all blocks of a processor one after the other.
        step_us: to multiply 16 along K, likewise.
        tile_us: to begin and to store a tile, likewise.
    """

    weights_us: float
    wait_us: float
    load_us: float
    step_us: float
    tile_us: float


@dataclass(frozen=True, slots=True)
class Conv:
    """Convolutions on the tensor cores.

    Attributes:
        tiles: to choose from.
        residual_ends_share: of a tile's `ends_us`, that a residual adds.
        exchange_us: between the blocks of a cluster that share K.
        patch_blocks, narrow_patch_blocks: of few channels, blocks that a processor holds; the
            second where one row or column of tiles is all there is, and registers hold more.
    """

    tiles: tuple[ConvTile, ...]
    residual_ends_share: float
    exchange_us: float
    patch_blocks: int
    narrow_patch_blocks: int
    patches: Patches


@dataclass(frozen=True, slots=True)
class CodeStreams:
    """Products of few rows with quantized weights.

    Attributes:
        warps: of a block.
        register_blocks: that a processor's registers should do for.
        shared_bytes: that each block takes of shared memory; 0: as those of floats do.
    """

    warps: int
    register_blocks: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class CodeTile:
    """A tile of products of many rows with quantized weights, by TMA, and how long it takes.

    Attributes:
        groups: warpgroups, of 64 rows of weights.
        tokens: rows of x.
        x_stages, code_stages: of the rings: 64 elements of x, 128 bytes of codes.
        per_processor: blocks that a processor should hold.
        step_us: of 64 elements of K, where a block is alone on its processor.
        shared_step_us: for each block on a processor with others.
        ends_us: to begin and end a block.
    """

    groups: int
    tokens: int
    x_stages: int
    code_stages: int
    per_processor: int
    step_us: float
    shared_step_us: float
    ends_us: float


@dataclass(frozen=True, slots=True)
class CodeRows:
    """Products of several rows with quantized weights.

    Attributes:
        multistage_rows: up to which they are computed as one row is.
        byte_sums, nibble_sums: tiles of 16 rows of weights by eight rows of x, whose sums a thread
            of 256 has registers for.
        begin_us: to begin and end a block.
        block_bytes_per_us: of weights and x, that a block reads.
        tiles: by TMA, of any number of rows.
        exchange_us: for each block beyond the first that splits K in a cluster, of 8,192 sums; it
            grows with the fourth root of their number.
        expand_begin_us: to begin and end a launch that expands codes, and to have the product wait
            for it.
        expanded_bytes_per_us: of codes and what they are expanded to.
        most_expanded_bytes: that may be taken of memory for it.
    """

    multistage_rows: int
    byte_sums: int
    nibble_sums: int
    begin_us: float
    block_bytes_per_us: float
    tiles: tuple[CodeTile, ...]
    exchange_us: float
    expand_begin_us: float
    expanded_bytes_per_us: float
    most_expanded_bytes: int


@dataclass(frozen=True, slots=True)
class Decode:
    """Products of one row and attention of one step, which wait for memory.

    Up to five launches of a decoder's layer have blocks on a processor; each starts where one
    before it has ended. Beside what is there then, one block of it must have room, and never two:
    all would wait for that processor.

    Attributes:
        shared_bytes: of a block, for rows of W and for x.
        small_shared_bytes: that a product takes which needs less: the projections of attention's
            output, where the product before ends.
        small_normed_shared_bytes: likewise of queries, keys and values, where gate and up end.
        step_clusters: of attention, that the device places with one block a processor.
        step_stages: slices of keys of a warp in flight: the next products need the memory more.
        bytes, nibbles: products with int8 and with int4.
    """

    shared_bytes: int
    small_shared_bytes: int
    small_normed_shared_bytes: int
    step_clusters: int
    step_stages: int
    bytes: CodeStreams
    nibbles: CodeStreams


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A tile of attention whose keys and values TMA copies.

    Attributes:
        rows: of queries, 64 a warpgroup.
        keys: that are multiplied at once.
        stages: tiles of keys and values in flight.
        blocks_per_processor: that a processor should hold.
    """

    rows: int
    keys: int
    stages: int = 2
    blocks_per_processor: int = 1


@dataclass(frozen=True, slots=True)
class TmaAttention:
    """Attention of many rows whose keys and values TMA copies.

    Attributes:
        tiles: to choose from.
        begin_us: to begin a launch. block_us: to begin and end a block. step_us: to take a tile of
            keys. score_us: of a processor, to weigh a score. multiply_us: a multiplication for it.
        alone: how many times as long 64 rows take that no other rows alternate with.
    """

    tiles: tuple[AttentionTile, ...]
    begin_us: float
    block_us: float
    step_us: float
    score_us: float
    multiply_us: float
    alone: float


@dataclass(frozen=True, slots=True)
class FloatAttention:
    """Attention of float32, in parts.

    Attributes:
        blocks_per_processor: that a processor holds. step_us: that they take 64 keys of heads of
            64 in, side by side.
        combine_us: to begin adding up splits of the keys. bytes_per_us: of their sums.
    """

    blocks_per_processor: int
    step_us: float
    combine_us: float
    bytes_per_us: float


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of many rows, in tiles of 64 keys.

    Attributes:
        whole_tiles: of keys, up to which they are not split over blocks.
        split_blocks_per_processor: that splitting the keys should make.
        shared_row_tiles: of keys, above which two warps share a row of queries.
        cluster_splits: parts of the keys, above which the blocks of a cluster combine them.
        cluster_turns: of a warp, 16 keys each, up to which blocks of a cluster do not share keys.
        begin_us: that beginning and ending take.
        multiplications_per_us: of the device.
        tma: the same attention where TMA copies keys and values.
        floats: the same of float32.
    """

    whole_tiles: int
    split_blocks_per_processor: int
    shared_row_tiles: int
    cluster_splits: int
    cluster_turns: int
    begin_us: float
    multiplications_per_us: float
    tma: TmaAttention
    floats: FloatAttention


@dataclass(frozen=True, slots=True)
class Rows:
    """Softmax, norms, reductions, scans and pooling, which memory bounds.

    Attributes:
        warp_elements: of a row, that a warp takes alone.
        short_elements: of a row, up to which it does so though there are few rows.
        block_elements: of a row, above which a block has as many threads as it can.
        split_elements: that a block of a split reduction should have at least.
        scan_elements, scan_lanes: a block takes a row of more elements, of fewer lanes.
        pool_threads: that fill the device well enough to read 16 bytes each.
    """

    warp_elements: int
    short_elements: int
    block_elements: int
    split_elements: int
    scan_elements: int
    scan_lanes: int
    pool_threads: int


@dataclass(frozen=True, slots=True)
class GroupNorms:
    """How long group norms take.

    Attributes:
        step_us: of a block that has a group by itself, for an element of each of its threads.
        second_us: of a second launch, where blocks share groups.
        pass_us: of positions that a thread loads at once, which it waits for.
        number_us: for each neighbouring channel that it has of them.
        fold_us: to put together one of the moments that a thread of a group has of a block's.
        part_us: likewise of all blocks' parts, which lie in memory.
    """

    step_us: float
    second_us: float
    pass_us: float
    number_us: float
    fold_us: float
    part_us: float


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Steps of recurrences as one command, which multiplies outside of the tensor cores.

    Attributes:
        block_rows: for which a block reads the weights once at most; so many are always worth it.
        blocks: that a launch has at most where its blocks take fewer rows, to fill more processors.
        rows: up to which it may be worth it.
        gated_products, plain_products: multiply-adds of such a step, up to which it is faster than
            a product on the tensor cores and formulas, or than a product with an activation.
        held_units, held_floats: most units of a recurrence whose weight a block holds: in registers
            as operands of the tensor cores, or of float32 in shared memory.
    """

    block_rows: int
    blocks: int
    rows: int
    gated_products: int
    plain_products: int
    held_units: int
    held_floats: int


@dataclass(frozen=True, slots=True)
class Scatter:
    """Ways to scatter by indices of the run: a walk's step and a launch as measured, the rest
    predicted.

    Attributes:
        step_us: of a walk.
        launch_us: of a launch among others.
        item_us: to move an item in a pass, on a full device.
        atomic_steps: of a walk, from which on atomic operations take its place.
        scratch_bytes: that sorting may ask for, at most.
        tile: items of a block that sorts, or twice as many where they are all.
        span: of sorted items that a thread looks at, at most.
        thread_us: for an item of a run that a thread takes.
        block_us, block_item_us: for a run that a block takes, and for each of its items.
        beside: blocks of a processor, of those that take runs.
        few_long: items of a run, above which a block takes it where that is faster for all runs.
        many_long, times_mean: the same elsewhere; and the run is of so many times the mean.
    """

    step_us: float
    launch_us: float
    item_us: float
    atomic_steps: int
    scratch_bytes: int
    tile: int
    span: int
    thread_us: float
    block_us: float
    block_item_us: float
    beside: int
    few_long: int
    many_long: int
    times_mean: int


@dataclass(frozen=True, slots=True)
class Libraries:
    """When a library is worth opening.

    Attributes:
        least_rows: of a product, from which cuBLASLt leads.
        least_multiplications: of a product.
    """

    least_rows: int
    least_multiplications: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, by what its kernels were measured to do."""

    processors: Processors
    matmul: Matmul
    tma_matmul: TmaMatmul
    one_order: OneOrder
    conv: Conv
    decode: Decode
    code_rows: CodeRows
    attention: Attention
    rows: Rows
    group_norms: GroupNorms
    recurrent: Recurrent
    scatter: Scatter
    libraries: Libraries


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of an architecture.

    Attributes:
        name: of the architecture.
        measured_on: the device.
        winograd: None where the device has no such kernels, or nobody measured when they pay: they
            are not chosen then.
        pytorch: PyTorch on this processor; None: it is taken to be as `HOST` is.
        gpu: None of processors that are none.
    """

    name: str
    measured_on: str
    winograd: Winograd | None = None
    pytorch: PyTorchCosts | None = None
    gpu: Gpu | None = None
