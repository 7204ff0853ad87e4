"""What the text of a kernel may not hold: each lint and each check has a text that fires it.

And the texts beside them that Metal takes are taken, so that a lint does not refuse all.
"""

from __future__ import annotations

import pytest

from tests.softmetal.build import compiler
from tests.softmetal.msl.compile_library import Failed, rewritten
from tests.softmetal.msl.tokens import Refused

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNEL = "kernel void k(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]])"
SIMPLE = f"{KERNEL} {{ y[i] = 1.0f; }}\n"


def refusal(text: str) -> str:
    """Why a text is refused; empty: it is taken."""
    clang = compiler()
    if clang is None:
        pytest.skip("MSL is checked by clang 17 or newer: on Debian clang-19")
    try:
        rewritten(clang, text, [])
    except (Refused, Failed) as error:
        return str(error)
    return ""


def body(statements: str, before: str = "") -> str:
    return f"{HEAD}{before}\n{KERNEL} {{\n{statements}\n}}\n"


# In line 5 of the text, after the head (2 lines), `before` (1) and the kernel's first.
STATEMENTS = {
    "double x = 1;": "MSL has no double",
    "auto f = [](float x) { return x; }; y[i] = f(1);": "no lambdas",
    "y[i] = g([=](float x) { return x; });": "no lambdas",
    "try { y[i] = 1; } catch (int e) { }": "no exceptions",
    "throw 1;": "no exceptions",
    "static int n = 0;": "no static variables",
    "y[i] = *new float(1);": "no dynamic memory",
    "float* p = y;": "address space",
    "const float &p = y[0];": "address space",
    "y[i] = *(float*)(y + 1);": "address space",
    "y[i] = *static_cast<const float*>(y);": "address space",
    "y[i] = *const_cast<device float*>(y);": "stays const",
    "goto end; end: y[i] = 1;": "no goto",
    'asm("nop");': "no inline assembly",
    "long long n = 1;": "no such type",
    "y[i] = std::max(1.0f, 2.0f);": "namespace metal",
    'printf("x");': "no printf",
    "device float z[4];": "cannot be declared in a function",
    "constant float z[4] = {1};": "cannot be declared in a function",
    "{ threadgroup float z[4]; }": "at the top of the kernel",
    "if (i == 0) threadgroup float z[4];": "at the top of the kernel",
    "threadgroup float a[4], b[4];": "one threadgroup variable at a time",
    "threadgroup float a = 1;": "without a value",
    "float4 v = (float4)i; y[i] = v.x;": "instead of a cast",
    "float4 v = static_cast<float4>(int4(1)); y[i] = v.x;": "instead of a cast",
    # clang's
    "if constexpr (true) y[i] = 1;": "C++17 extension",
    "y[i] = undeclared;": "undeclared",
    "y[i] = erf(1.0f);": "undeclared",
    "y[i] = max(1.0f, 2);": "ambiguous",
    "float z[i]; y[i] = z[0];": "variable",
    "threadgroup float z[4]; device float* p = z;": "cannot initialize",
    "bfloat b = y[i]; y[i] = b;": "bfloat",
    "float4 v = int4(1); y[i] = v.x;": "cannot initialize",
    "float4 v = float4(1.0f, 2.0f); y[i] = v.x;": "as many elements",
    "simd_sum(1.0f, 2);": "no matching function",
    "long n = simd_shuffle_xor(1L, 1);": "up to 32 bits",
}


@pytest.mark.seeded_fault
@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements(statement: str) -> None:
    message = refusal(body(statement))
    assert STATEMENTS[statement] in message
    assert message.startswith("program_source:5:"), message


TEXTS = {
    "recursion": (
        f"{HEAD}static float f(float x) {{ return x > 1 ? f(x - 1) : x; }}\n{SIMPLE}",
        "calls itself",
    ),
    "mutual recursion": (
        f"{HEAD}static float g(float x);\nstatic float f(float x) {{ return g(x); }}\n"
        f"static float g(float x) {{ return f(x); }}\n{SIMPLE}",
        "calls itself",
    ),
    "a program's variable": (f"{HEAD}float z = 1;\n{SIMPLE}", "constant address space"),
    "a constexpr variable": (f"{HEAD}constexpr float z = 1;\n{SIMPLE}", "constant address space"),
    "a pointer member": (f"{HEAD}struct S {{ float* p; }};\n{SIMPLE}", "address space"),
    "a parameter": (f"{HEAD}static float f(float* p) {{ return *p; }}\n{SIMPLE}", "address space"),
    "a reference": (f"{HEAD}static void f(float& p) {{ p = 1; }}\n{SIMPLE}", "address space"),
    "virtual": (f"{HEAD}struct S {{ virtual void f(); }};\n{SIMPLE}", "no virtual"),
    "a header": (f"#include <vector>\n{HEAD}{SIMPLE}", "cannot include <vector>"),
    "a file": (f'#include "other.h"\n{HEAD}{SIMPLE}', "cannot include"),
    "extern": (f"{HEAD}extern float f(float x);\n{SIMPLE}", "'extern'"),
    "instantiation": (
        f"{HEAD}template <typename T> kernel void k(device T* y [[buffer(0)]]) {{}}\n"
        'template [[host_name("k_f")]] kernel void k<float>(device float*);\n',
        "host_name",
    ),
    "a kernel template": (
        f"{HEAD}template <typename T> kernel void k(device T* y [[buffer(0)]]) {{}}\n",
        "not a plain function",
    ),
    "an index twice": (
        f"{HEAD}kernel void k(device float* x [[buffer(0)]], device float* y [[buffer(0)]]) {{}}",
        "used twice",
    ),
    "no attribute": (f"{HEAD}kernel void k(device float* x) {{}}", "needs its attribute"),
    "a value": (f"{HEAD}kernel void k(float x [[buffer(0)]]) {{}}", "is in device or constant"),
    "no space": (f"{HEAD}kernel void k(float* x [[buffer(0)]]) {{}}", "address space"),
    "a constant value": (f"{HEAD}kernel void k(constant float x [[buffer(0)]]) {{}}", "no values"),
    "index 31": (f"{HEAD}kernel void k(device float* x [[buffer(31)]]) {{}}", "there are 31"),
    "an unknown built-in": (
        f"{HEAD}kernel void k(uint i [[vertex_id]]) {{}}",
        "not taken",
    ),
    "a float position": (
        f"{HEAD}kernel void k(float i [[thread_position_in_grid]]) {{}}",
        "a uint or a ushort",
    ),
    "a vector of lanes": (
        f"{HEAD}kernel void k(uint2 i [[thread_index_in_simdgroup]]) {{}}",
        "is a scalar",
    ),
    "two shapes of a grid": (
        f"{HEAD}kernel void k(uint i [[thread_position_in_grid]],"
        " uint2 n [[threads_per_grid]]) {}",
        "one number of components",
    ),
    "a kernel's value": (
        f"{HEAD}kernel int k(device float* x [[buffer(0)]]) {{ return 1; }}",
        "void",
    ),
    "threadgroup memory in a function": (
        f"{HEAD}static void f() {{ threadgroup float x[4]; }}\n{SIMPLE}",
        "in the kernel itself",
    ),
    "a constant of a constant": (
        f"{HEAD}constant int n [[function_constant(0)]];\nconstant int m = n * 2;\n{SIMPLE}",
        "compute it in the kernel",
    ),
    "a write to constant memory": (
        f"{HEAD}kernel void k(constant float* x [[buffer(0)]]) {{ x[0] = 1; }}",
        "read-only",
    ),
    "a cast that drops const": (
        f"{HEAD}kernel void k(device const float* x [[buffer(0)]]) {{ *(device float*)x = 1; }}",
        "drops const",
    ),
    "no namespace": (
        "#include <metal_stdlib>\n" + f"{KERNEL} {{ y[i] = exp(1.0f); }}",
        "undeclared",
    ),
    "copied struct": (
        f"{HEAD}struct S {{ float a; }};\nkernel void k(constant S& s [[buffer(0)]])"
        " { S t = s; }",
        "read their members",
    ),
    "a declaration without an end": (f"{HEAD}{SIMPLE}\nconstant int n = 1", "expected ';'"),
    "threadgroup memory without an end": (
        f"{HEAD}{KERNEL} {{ y[i] = 1; threadgroup float x[4] }}",
        "does not end",
    ),
    "a type where it is used": (
        f"{HEAD}struct S {{ int a; }};\nstruct S f(int x) {{ S s = {{x}}; return s; }}\n{SIMPLE}",
        "write 'struct' only where",
    ),
    "a variable behind its type": (
        f"{HEAD}struct S {{ int a; }} s;\n{SIMPLE}",
        "declare variables apart",
    ),
    "an attribute before the name": (
        f"{HEAD}kernel void k(device float* [[buffer(0)]] x) {{}}",
        "a type, a name and one attribute",
    ),
    "an index by name": (
        f"{HEAD}kernel void k(device float* x [[buffer(N)]]) {{}}",
        "write [[buffer(n)]] with a number",
    ),
    "a threadgroup variable without a type": (
        f"{HEAD}{KERNEL} {{ threadgroup x[4]; y[i] = 1; }}",
        "not understood",
    ),
    "a function constant of a pointer": (
        f"{HEAD}constant device float* n [[function_constant(0)]];\n{SIMPLE}",
        "write constant T name",
    ),
    "a bracket too many": (f"{HEAD}{KERNEL} {{ y[i] = 1); }}", "closes nothing"),
    "no end": (f"{HEAD}{KERNEL} {{ y[i] = 1;", "not closed"),
    "a string": (f'{HEAD}constant char s[] = "x";\n{SIMPLE}', "no strings"),
    "a string behind an assertion": (
        f'{HEAD}static_assert(true, "x");\nconstant char s[] = "x";\n{SIMPLE}',
        "no strings",
    ),
    "two attributes": (f"{HEAD}[[kernel, likely]] void k() {{}}", "[[likely]] is not taken"),
    "a limit by name": (
        f"{HEAD}[[max_total_threads_per_threadgroup(N)]] {SIMPLE}",
        "max_total_threads_per_threadgroup(n)",
    ),
    "an attribute": (f"{HEAD}{KERNEL} {{ [[likely]] y[i] = 1; }}", "not taken"),
}


@pytest.mark.seeded_fault
@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    text, message = TEXTS[name]
    assert message in refusal(text)


ACCEPTED = {
    "an assertion": 'static_assert(sizeof(int) == 4, "32 bits"); y[i] = 1;',
    "arithmetic": "y[i] = y[i] * 2.0 + float(i & 3u) / (1 + i);",
    "products that look like declarations": "float a = 1, b = 2; a = a * b; y[i] = (a) * b;",
    "pointers": "device float* p = y + i; device const float& q = *p; *p = q; thread float* t;",
    "casts": "device uint* p = reinterpret_cast<device uint*>(y); p[i] = as_type<uint>(1.0f);",
    "vectors": "float4 v = float4(1.0f, float2(2.0f), 3.0f); v.xy = v.zw; y[i] = dot(v, v);",
    "literals": "half h = 1.5h; bfloat b = 2.0bf; y[i] = h + float(b) + 1e-3;",
    "loops": "#pragma unroll\nfor (ushort j = 0; j < 4; ++j) { if (j == 2) continue; y[j] += j; }",
    "arrays": "float a[2][3] = {}; int n[4] = {0}; a[n[0]][n[n[1]]] = 1; y[i] = a[0][0];",
    "threadgroup": "threadgroup float s[2 * 4]; threadgroup float* p = s; p[i] = 1; y[i] = s[0];",
}


def test_an_operators_sign_is_no_call() -> None:
    operators = (
        "struct S { float a; };\nstatic float f(float x) { return -(x + (x)); }\n"
        "static S operator+(S a, S b) { return {f(a.a) + (b.a)}; }"
    )
    assert refusal(body("const S s = {1}; y[i] = (s + (s)).a;", operators)) == ""


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_statements(name: str) -> None:
    assert refusal(body(ACCEPTED[name])) == ""


def test_accepted_declarations() -> None:
    text = f"""{HEAD}
constant bool flag [[function_constant(3)]];
constant float table[2] = {{1, 2}};
constant constexpr uint kCount = 2;
enum class Mode : uint {{ a, b }};
struct Params {{ uint n; float scale; float get() const {{ return scale; }} }};
struct Cursor {{
  device float* at;
  explicit Cursor(device float* p) : at(p) {{}}
  void put(float x) {{ *at = x; }}
}};
namespace detail {{ template <int N> static float power(float x) {{ return x * power<N - 1>(x); }}
template <> float power<0>(float x) {{ return 1; }} }}
using Four = float4;
template <typename T> static T twice(T x) {{ return T(x) + T(x); }}
struct Wrapped {{ float x; }};
Wrapped operator%(Wrapped a, float b) {{ return Wrapped{{a.x - b}}; }}
[[max_total_threads_per_threadgroup(64)]] kernel void k(
    device float* y [[buffer(0)]], constant Params& p [[buffer(1)]],
    threadgroup half* s [[threadgroup(0)]], ushort3 i [[thread_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]]) {{
  Cursor cursor = Cursor(y + i.x);
  Four v = Four((Wrapped{{3.0f}} % 2.0f).x);
  cursor.put(detail::power<3>(table[i.x % kCount]) + (flag ? p.scale : twice(v).x) + s[lane]);
}}
"""
    assert refusal(text) == ""


def test_lines_are_those_of_the_source() -> None:
    """Through macros, comments over several lines, and the head."""
    text = (
        f"{HEAD}/* a\nb */\n#define TWICE(x) \\\n  ((x) + (x))\n{KERNEL} {{\n  y[i] = TWICE(z);\n}}"
    )
    assert refusal(text).startswith("program_source:8:")
