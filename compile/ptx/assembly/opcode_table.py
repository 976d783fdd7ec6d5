"""Every supported instruction: opcode, modifiers, operands (PTX ISA 8.8, "Instruction Set"). Any other is rejected.

A line is `opcode groups : operands`. Each modifier of an instruction must be in a different group: `(a b)` is a group
of which one is required, `[a b]` one that is optional. A word in capitals is a list below. An operand is one of

    d  register that is written, or `_`        D  the same, or a vector of them      e  pair `d|p`     E  pair or `d`
    r  vector that is read and written         _  `_`                                m  address        b  label
    s  register, constant, special register, variable              S  the same, or a vector of them
    c  predicate, which may be negated, or a constant              i  integer constant

and may be followed by `?`, if it is optional.
"""

from __future__ import annotations

_MN = tuple(f"m64n{8 * n}k{k}" for n in range(1, 33) for k in (8, 16, 32))

WORDS: dict[str, tuple[str, ...]] = {
    "INT": ("u16", "u32", "u64", "s16", "s32", "s64"),
    "INT8": ("u8", "s8", "u16", "u32", "u64", "s16", "s32", "s64"),
    "BITS": ("b16", "b32", "b64"),
    "PACKED": ("f16", "f16x2", "bf16", "bf16x2"),
    "MEMORY": tuple(
        ["b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"],
    ),
    "WHOLE": ("rni", "rzi", "rmi", "rpi"),
    "ORDERED": ("eq", "ne", "lt", "le", "gt", "ge"),
    "UNORDERED": ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"),
    "SCOPE": ("cta", "cluster", "gpu", "sys"),
    "SHARED": ("shared", "shared::cta"),
    "EVICT": ("L1::evict_first", "L1::evict_last", "L1::evict_normal", "L1::evict_unchanged", "L1::no_allocate"),
    "PREFETCH": ("L2::64B", "L2::128B", "L2::256B"),
    "OPERATION": ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec"),
    "ATOMIC": ("u32", "s32", "b32", "u64", "s64", "b64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "TENSOR": ("1d", "2d", "3d", "4d", "5d"),
    "MATRIX": ("bf16", "f16", "tf32", "s8", "u8", "e4m3", "e5m2"),
    "GROUP": _MN,
    "READ": ("weak", "relaxed", "acquire", "volatile"),
    "CACHE": ("ca", "cg", "cs", "lu", "cv"),
    "INTO": ("shared", "shared::cta", "shared::cluster"),
    "COMPLETE": ("mbarrier::complete_tx::bytes",),
    "FIELD": (
        "global_address",
        "rank",
        "box_dim",
        "global_dim",
        "global_stride",
        "element_stride",
        "elemtype",
        "interleave_layout",
        "swizzle_mode",
        "fill_mode",
    ),
}

TABLE = """
add (INT) : d s s
add (u16x2 s16x2) : d s s
add [rn rz] [ftz] [sat] (f32) : d s s
add [rn] (f64) : d s s
add [rn] (PACKED) : d s s
add (cc) (u32 s32) : d s s
addc [cc] (u32 s32) : d s s
sub (INT) : d s s
sub [rn rz] [ftz] [sat] (f32) : d s s
sub [rn] (f64) : d s s
sub [rn] (PACKED) : d s s
mul (lo hi) (INT) : d s s
mul (wide) (u16 s16 u32 s32) : d s s
mul [rn rz] [ftz] [sat] (f32) : d s s
mul [rn] (f64) : d s s
mul [rn] (PACKED) : d s s
mad (lo hi) (INT) : d s s s
mad (wide) (u16 s16 u32 s32) : d s s s
mad (lo hi) (cc) (u32 s32) : d s s s
madc (lo hi) [cc] (u32 s32) : d s s s
fma (rn) [ftz] [sat] (f32) : d s s s
fma (rn) (f64) : d s s s
fma (rn) (PACKED) : d s s s
div (INT) : d s s
div (full approx rn) [ftz] (f32) : d s s
div (rn) (f64) : d s s
rem (INT) : d s s
min (INT) : d s s
min (relu) (s32) : d s s
min (u16x2 s16x2) : d s s
min [ftz] [NaN] (f32) : d s s s?
min [ftz] [NaN] (xorsign) (abs) (f32) : d s s
min (f64) : d s s
min [NaN] (PACKED) : d s s
max (INT) : d s s
max (relu) (s32) : d s s
max (u16x2 s16x2) : d s s
max [ftz] [NaN] (f32) : d s s s?
max [ftz] [NaN] (xorsign) (abs) (f32) : d s s
max (f64) : d s s
max [NaN] (PACKED) : d s s
abs (s16 s32 s64) : d s
abs [ftz] (f32) : d s
abs (f64) : d s
abs (PACKED) : d s
neg (s16 s32 s64) : d s
neg [ftz] (f32) : d s
neg (f64) : d s
neg (PACKED) : d s
sqrt (approx rn) [ftz] (f32) : d s
sqrt (rn) (f64) : d s
rsqrt (approx) [ftz] (f32) : d s
rcp (approx rn) [ftz] (f32) : d s
rcp (rn) (f64) : d s
ex2 (approx) [ftz] (f32) : d s
ex2 (approx) (f16) : d s
lg2 (approx) [ftz] (f32) : d s
sin (approx) [ftz] (f32) : d s
cos (approx) [ftz] (f32) : d s
tanh (approx) (f32) : d s
copysign (f32 f64) : d s s

and (BITS) : d s s
and (pred) : d c c
or (BITS) : d s s
or (pred) : d c c
xor (BITS) : d s s
xor (pred) : d c c
not (BITS) : d s
not (pred) : d c
shl (BITS) : d s s
shr (INT b16 b32 b64) : d s s
shf (l r) (wrap clamp) (b32) : d s s s
bfe (u32 s32) : d s s s
bfe (u64 s64) : d s i i
bfi (b32) : d s s s s
prmt (b32) : d s s s
lop3 (b32) : d s s s i
brev (b32) : d s
popc (b32 b64) : d s
clz (b32 b64) : d s

setp (ORDERED lo ls hi hs) (INT) : E s s
setp (ORDERED lo ls hi hs) (and or xor) (INT) : E s s c
setp (eq ne) (BITS) : E s s
setp (eq ne) (and or xor) (BITS) : E s s c
setp (ORDERED UNORDERED) [ftz] (f32) : E s s
setp (ORDERED UNORDERED) (and or xor) [ftz] (f32) : E s s c
setp (ORDERED UNORDERED) (f64 f16 bf16) : E s s
setp (ORDERED UNORDERED) (and or xor) (f64 f16 bf16) : E s s c
setp (ORDERED UNORDERED) (f16x2 bf16x2) : e s s
set (nan) (f16x2) (f16x2) : d s s
selp (INT b16 b32 b64 f16 bf16 f32 f64) : d s s c
mov (INT b16 b32 b64 f16 bf16 f32 f64) : D S
mov (pred) : d c
cvta [to] (global const local) (u64) : d s
createpolicy (fractional) (L2::evict_first L2::evict_last L2::evict_normal L2::evict_unchanged) (b64) : d s?

cvt (INT8) (INT8) : d s
cvt (WHOLE) [ftz] [sat] (INT8) (f32) : d s
cvt (WHOLE) [sat] (INT8) (f16 f64 bf16) : d s
cvt (rn) (f16 f32 f64) (INT8) : d s
cvt (rn) (bf16) (u8 s8 u16 s16 u32 s32) : d s
cvt [WHOLE] [ftz] [sat] (f32) (f32) : d s
cvt [WHOLE] (f64) (f64) : d s
cvt [WHOLE] (f16) (f16) : d s
cvt [ftz] (f32) (f16) : d s
cvt (f64) (f16 f32) : d s
cvt (f32) (bf16) : d s
cvt (rn) [ftz] (f32) (f64) : d s
cvt (rn rz) (f16 bf16) (f32) : d s
cvt (rn) (f16) (f64) : d s
cvt (rn rz) (f16x2 bf16x2) (f32) : d s s
cvt (rn) (satfinite) (e4m3x2 e5m2x2) (f32) : d s s
cvt (rn) (satfinite) (e4m3x2 e5m2x2) (f16x2) : d s
cvt (rn) (f16x2) (e4m3x2 e5m2x2) : d s
cvt (rna) (tf32) (f32) : d s

ld (param) [v2 v4] (MEMORY) : D m
ld [global SHARED local const] [READ] [SCOPE] [EVICT] [PREFETCH] [CACHE] [nc] [v2 v4] (MEMORY) : D m
ld [global] [EVICT] (L2::cache_hint) [PREFETCH] [nc] [v2 v4] (MEMORY) : D m s
st [global SHARED local] [weak relaxed release volatile] [SCOPE] [EVICT] [wb cg cs wt] [v2 v4] (MEMORY) : m S
st [global] [EVICT] (L2::cache_hint) [v2 v4] (MEMORY) : m S s
atom [global SHARED] [relaxed acquire release acq_rel] [SCOPE] (OPERATION) [noftz] (ATOMIC) : d m s
atom [global SHARED] [relaxed acquire release acq_rel] [SCOPE] (cas) (b32 u32 s32 b64 u64 s64) : d m s s
red [global SHARED] [relaxed release] [SCOPE] (OPERATION) [noftz] (ATOMIC) : m s
prefetch (global) (L1 L2) : m
ldmatrix (sync) (aligned) (m8n8) (x1 x2 x4) [trans] (SHARED) (b16) : D m
stmatrix (sync) (aligned) (m8n8) (x1 x2 x4) [trans] (SHARED) (b16) : m S
cp (async) (ca cg) (SHARED) (global) [PREFETCH] : m m i s?
cp (async) (ca cg) (SHARED) (global) (L2::cache_hint) [PREFETCH] : m m i s s
cp (async) (ca cg) (SHARED) (global) (L2::cache_hint) [PREFETCH] : m m i s
cp (async) (commit_group wait_all) :
cp (async) (wait_group) : i
cp (async) (mbarrier) (arrive) [noinc] (SHARED) (b64) : m
cp (async) (bulk) (tensor) (TENSOR) (INTO) (global) [tile] (COMPLETE) : m m m
cp (async) (bulk) (tensor) (TENSOR) (INTO) (global) [tile] (COMPLETE) (L2::cache_hint) : m m m s
cp (async) (bulk) (tensor) (TENSOR) (global) (SHARED) [tile] (bulk_group) : m m
cp (async) (bulk) (commit_group) :
cp (async) (bulk) (wait_group) [read] : i
mbarrier (init) [SHARED] (b64) : m s
mbarrier (inval) [SHARED] (b64) : m
mbarrier (arrive) [release] [cta] [SHARED] (b64) : _ m s?
mbarrier (arrive) [release] [cta] [SHARED] (b64) : m s?
mbarrier (arrive) (expect_tx) [release] [cta] [SHARED] (b64) : _ m s
mbarrier (arrive) (expect_tx) [release] [cta] [SHARED] (b64) : m s
mbarrier (expect_tx) [relaxed] [cta] [SHARED] (b64) : m s
mbarrier (try_wait test_wait) (parity) [acquire] [cta] [SHARED] (b64) : d m s s?
tensormap (replace) (tile) (FIELD) (shared::cta) (b1024) (b32 b64) : m s
tensormap (replace) (tile) (FIELD) (shared::cta) (b1024) (b32 b64) : m i s
tensormap (cp_fenceproxy) (global) (shared::cta) (tensormap::generic) (release) (SCOPE) (sync) (aligned) : m m i
fence [sc acq_rel acquire release] (SCOPE) :
fence (proxy) (async) [global SHARED shared::cluster] :
fence (proxy) (tensormap::generic) (acquire) (SCOPE) : m i
fence (proxy) (tensormap::generic) (release) (SCOPE) :
fence (mbarrier_init) (release) (cluster) :
membar (cta gl sys) :

mma (sync) (aligned) (m16n8k4 m16n8k8 m16n8k16 m16n8k32) (row) (col) (f32) (MATRIX) (MATRIX) (f32) : D S S S
mma (sync) (aligned) (m16n8k16 m16n8k32) (row) (col) [satfinite] (s32) (s8 u8) (s8 u8) (s32) : D S S S
wgmma (mma_async) (sync) (aligned) (GROUP) (f32) (MATRIX) (MATRIX) : r S s c i i i? i?
wgmma (mma_async) (sync) (aligned) (GROUP) [satfinite] (s32) (s8 u8) (s8 u8) : r S s c
wgmma (fence commit_group) (sync) (aligned) :
wgmma (wait_group) (sync) (aligned) : i

shfl (sync) (up down bfly idx) (b32) : E s s i s
vote (sync) (ballot) (b32) : d c s
vote (sync) (any all uni) (pred) : d c s
match (any) (sync) (b32 b64) : d s s
match (all) (sync) (b32 b64) : E s s
redux (sync) (add and or xor min max) (u32 s32 b32) : d s s
elect (sync) : e s
activemask (b32) : d

bra [uni] : b
ret [uni] :
exit :
trap :
bar [cta] (sync) : i i?
barrier [cta] (sync) [aligned] : i i?
bar (warp) (sync) : s
nanosleep (u32) : s
griddepcontrol (launch_dependents wait) :
setmaxnreg (inc dec) (sync) (aligned) (u32) : i
"""
