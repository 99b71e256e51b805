"""Check libswiglu.so against FP64 on a GPU; one line per group, non-zero exit on a fault.

    python -m tests.csrc.gpu_check build/csrc/libswiglu.so [--seed 0] [--repeats 1000] [--quick]

Every input is drawn afresh from the seed. Outputs lie inside poisoned buffers, inputs are followed
by NaN, so that a row or column too many shows at once.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import torch
from torch.nn import functional

from tests.csrc import abi
from tests.csrc.cases import (
    ACTIVATIONS,
    POISON,
    QWEN,
    Case,
    faults,
    frame_fault,
    make_case,
    off_by_percent,
    reference,
    say,
)
from tests.csrc.gpu_run import Swiglu, interleave_rows


class Checker:
    def __init__(self, path: str, seed: int) -> None:
        self.swiglu = Swiglu(path)
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.failures = 0
        self.started = time.monotonic()

    def group(self, name: str, problems: list[str], count: int) -> None:
        self.failures += len(problems)
        spent = time.monotonic() - self.started
        verdict = "ok" if not problems else f"FAILED {len(problems)}"
        say(f"[{spent:6.1f} s] {name}: {count} checks, {verdict}")
        for problem in problems[:4]:
            say(f"    {problem}")

    def weights(self, config, gate_up):
        return interleave_rows(gate_up) if config.granularity == 0 else gate_up

    def run(self, config, case: Case, **options) -> None:
        self.swiglu(
            case.x, self.weights(config, case.gate_up), case.out, config=config.id, **options
        )

    def one(
        self, config, shape, scale, dtype=torch.bfloat16, activation=abi.SILU, **options
    ) -> str:
        """Run one random case; "" or a sentence."""
        pad = self.random.choice([0, 8, 64])
        case = make_case(*shape, scale=scale, dtype=dtype, pad=pad)
        self.run(config, case, activation=activation, **options)
        torch.cuda.synchronize()
        expected, slack = reference(case.x, case.gate_up, activation)
        fault = faults(case.out, expected, slack) or frame_fault(case)
        return (
            f"{config.name.decode()} MNK {shape} scale {scale} {options}: {fault}" if fault else ""
        )

    def edge_shapes(self, config, count):
        pick = self.random.choice
        tiles_m = [config.tile_m * i + d for i in (1, 2, 5) for d in (-1, 0, 1)]
        tiles_n = [config.tile_n * i + d for i in (1, 2, 3) for d in (-8, 0, 8)]
        ms = [1, 2, 7, 8, 63, 64, 65, 127, 128, 129, *tiles_m]
        ns = [8, 16, 24, 104, 200, 1000, *tiles_n]
        ks = [8, 16, 56, 64, 72, 128, 320, 328, 896, 1032]
        for m in ms:
            yield m, pick(ns), pick(ks)
        for n in ns:
            yield pick(ms), n, pick(ks)
        for k in ks:
            yield pick(ms), pick(ns), k
        for _ in range(count):
            yield (
                self.random.randint(1, 700),
                8 * self.random.randint(1, 250),
                8 * self.random.randint(1, 200),
            )

    def check_shapes(self, count) -> None:
        for config in self.swiglu.configs:
            problems, total = [], 0
            for shape in self.edge_shapes(config, count):
                options = {
                    "raster": self.random.choice([0, 1, 2]),
                    "swizzle": self.random.choice([0, 1, 2, 4, 8]),
                }
                problems.append(
                    self.one(config, shape, self.random.choice([0.02, 0.2, 1.0]), **options)
                )
                total += 1
            self.group(f"shapes {config.name.decode()}", [p for p in problems if p], total)

    def check_types(self) -> None:
        problems, total = [], 0
        for config in self.swiglu.configs:
            if not config.all_types:
                continue
            for dtype in (torch.bfloat16, torch.float16):
                for activation in ACTIVATIONS:
                    for shape in ((129, 200, 328), (64, 1000, 72), (333, 8, 896)):
                        for scale in (0.02, 0.3):
                            problems.append(self.one(config, shape, scale, dtype, activation))
                            total += 1
        self.group("dtypes and activations", [p for p in problems if p], total)

    def check_models(self) -> None:
        """The seven model shapes: FP64, and no more elements off by 1 % than cuBLAS has in FP32.

        That is a bf16 GEMM on the same tensor cores with an FP32 result; near-cancelled sums differ
        by the order and the truncation of their additions. FP32 outside tensor cores has 2 to 10
        times fewer.
        """
        problems, total = [], 0
        for name, (k, n) in QWEN.items():
            for scale in (0.02, 0.1):
                m = self.random.randint(130, 400)
                case = make_case(m, n, k, scale=scale, pad=0)
                expected, slack = reference(case.x, case.gate_up, abi.SILU)
                both = torch.mm(case.x, case.gate_up.T, out_dtype=torch.float32).split(n, dim=1)
                fp32 = (functional.silu(both[0]) * both[1]).bfloat16()
                eager = functional.silu(case.x @ case.gate_up[:n].T) * (case.x @ case.gate_up[n:].T)
                shares = [off_by_percent(v, expected) for v in (eager, fp32)]
                for config in self.swiglu.configs:
                    case.frame.fill_(POISON)
                    self.run(config, case)
                    fault = faults(case.out, expected, slack) or frame_fault(case)
                    ours = off_by_percent(case.out, expected)
                    if ours > 1.5 * shares[1] + 2e-5:
                        fault = fault or f"{ours:.3%} off by 1 %, FP32 {shares[1]:.3%}"
                    problems.append(
                        f"{config.name.decode()} {name} M {m}: {fault}" if fault else ""
                    )
                    total += 1
                shares.append(ours)
                listed = " ".join(f"{share:.4%}" for share in shares)
                say(f"    {name} scale {scale}: off by 1 %: eager, FP32, ours {listed}")
        self.group("model shapes", [p for p in problems if p], total)

    def check_special_values(self) -> None:
        inf, nan = float("inf"), float("nan")
        gates = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            88,
            -88,
            89,
            -89,
            1e4,
            -1e4,
            inf,
            -inf,
            nan,
            1e-39,
            -1e-39,
            3e38,
            -3e38,
        ]
        ups = [1.0, -2.0, 0.0, inf, nan, 1e-39]
        problems, total = [], 0
        pairs = [(g, u) for g in gates for u in ups]
        n = (len(pairs) + 7) // 8 * 8
        pairs += [(1.0, 1.0)] * (n - len(pairs))
        values = torch.tensor(pairs, device="cuda")
        for config in self.swiglu.configs:
            for activation, function in ACTIVATIONS.items():
                if activation != abi.SILU and not config.all_types:
                    continue
                x = torch.zeros(5, 8, dtype=torch.bfloat16, device="cuda")
                x[:, 0] = 1
                gate_up = torch.zeros(2 * n, 8, dtype=torch.bfloat16, device="cuda")
                gate_up[:n, 0], gate_up[n:, 0] = values[:, 0], values[:, 1]
                out = torch.full((5, n), POISON, dtype=torch.bfloat16, device="cuda")
                self.run(config, Case(x, gate_up, out, out), activation=activation)
                gate, up = gate_up[:n, 0].double(), gate_up[n:, 0].double()
                act = function(gate)
                want = (act * up).float().bfloat16()
                # Gates under -87 give a silu of 1.1e-36 or less, which we flush to 0 (hence atol):
                # times an infinite up that is NaN instead of infinity.
                flushed = (act.abs() < 1e-35) & up.isinf()
                for row in (0, 4):
                    same = torch.isclose(
                        out[row].float(), want.float(), rtol=2**-7, atol=2e-36, equal_nan=True
                    )
                    same |= flushed & ~out[row].isfinite()
                    problems.extend(
                        f"{config.name.decode()} act {activation} {pairs[i]}: "
                        f"{out[row, i].item()} instead of {want[i].item()}"
                        for i in (~same).nonzero().flatten().tolist()
                    )
                    total += n
        self.group("special values", problems, total)

    def check_repeats(self, repeats) -> None:
        problems, total = [], 0
        for config in self.swiglu.configs:
            case = make_case(517, 1096, 840, pad=8)
            weights = self.weights(config, case.gate_up)
            args = self.swiglu.args(case.x, weights, case.out, config=config.id)
            self.swiglu.launch(args)
            first = case.out.clone()
            differing = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(repeats):
                case.out.fill_(POISON)
                self.swiglu.launch(args)
                differing += (case.out.view(torch.int16) != first.view(torch.int16)).any()
            if int(differing):
                problems.append(
                    f"{config.name.decode()}: {int(differing)} of {repeats} runs differ"
                )
            total += repeats
        self.group("bitwise repeats", problems, total)

    def check_graph(self) -> None:
        problems = []
        case = make_case(300, 520, 456)
        for config in self.swiglu.configs:
            weights = self.weights(config, case.gate_up)
            stream = torch.cuda.Stream()
            graph = torch.cuda.CUDAGraph()
            args = self.swiglu.args(case.x, weights, case.out, config=config.id)
            with torch.cuda.graph(graph, stream=stream):
                self.swiglu.launch(args)
            for _ in range(3):
                case.x.copy_(torch.randn_like(case.x))
                case.frame.fill_(POISON)
                graph.replay()
                torch.cuda.synchronize()
                fault = faults(case.out, *reference(case.x, case.gate_up, abi.SILU)) or frame_fault(
                    case
                )
                if fault:
                    problems.append(f"{config.name.decode()}: {fault}")
        self.group("graph replays", problems, 3 * len(self.swiglu.configs))

    def check_empty(self) -> None:
        problems = []
        case = make_case(70, 136, 64)
        self.swiglu(case.x[:0], case.gate_up, case.out[:0])
        torch.cuda.synchronize()
        if not bool((case.frame == POISON).all()):
            problems.append("M = 0 wrote something")
        self.swiglu(case.x[:, :0], case.gate_up[:, :0], case.out)
        torch.cuda.synchronize()
        if not bool((case.out == 0).all()) or frame_fault(case):
            problems.append("K = 0 must fill the output with zeros and nothing else")
        self.group("M = 0, K = 0", problems, 2)

    def check_refusals(self) -> None:
        problems = []
        case = make_case(70, 136, 64)
        good = {"config": 0}
        bad = [
            {"n": 132},
            {"k": 60},
            {"m": -1},
            {"x": case.x.data_ptr() + 2},
            {"x": 0},
            {"out": case.out.data_ptr() + 4},
            {"out_row_stride": 140},
            {"out_row_stride": 128},
            {"gate_up": case.gate_up.data_ptr() + 8},
            {"gate_up_row_stride": 66},
            {"x_row_stride": 56},
            {"swizzle": 3},
            {"raster": 7},
            {"config": 99},
            {"dtype": 5},
            {"activation": 9},
            {"struct_size": 8},
            {"config": 1, "dtype": 1},
            {"reserved": 1},
        ]
        for change in bad:
            args = self.swiglu.args(case.x, case.gate_up, case.out, **{**good, **change})
            said = self.swiglu.refusal(args)
            if next(iter(change)) not in said and "config" not in said:
                problems.append(f"{change}: not refused by name, but: {said!r}")
        torch.cuda.synchronize()
        if not bool((case.frame == POISON).all()):
            problems.append("a refused call wrote to the output")
        self.group("refusals", problems, len(bad))

    def check_large(self) -> None:
        """Element counts beyond 2^31 in the output, in x and in the weights."""
        problems = []
        shapes = [(73_728, 29_568, 64), (270_336, 64, 8192), (128, 140_032, 8192)]
        for m, n, k in shapes:
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            gate_up = torch.randn(2 * n, k, device="cuda", dtype=torch.bfloat16).mul_(0.02)
            out = torch.full((m, n), POISON, device="cuda", dtype=torch.bfloat16)
            for config in self.swiglu.configs:
                if config.granularity != 8 or config.tile_m == 64:
                    continue
                out.fill_(POISON)
                self.swiglu(x, gate_up, out, config=config.id)
                rows = torch.cat([torch.randint(m, (60,)), torch.arange(m - 4, m)]).cuda()
                cols = torch.cat([torch.randint(n, (60,)), torch.arange(n - 4, n)]).cuda()
                part = torch.cat([gate_up[cols], gate_up[n + cols]])
                fault = faults(out[rows][:, cols], *reference(x[rows], part, abi.SILU))
                fault = fault or (
                    "" if not bool((out == POISON).any()) else "elements left unwritten"
                )
                if fault:
                    problems.append(f"{config.name.decode()} {(m, n, k)}: {fault}")
            del x, gate_up, out
        self.group("beyond 2^31 elements", problems, len(shapes))

    def show_host_time(self) -> None:
        """Host microseconds of one launch from Python, fewer launches than the queue holds."""
        case = make_case(64, 136, 64)
        args = self.swiglu.args(case.x, case.gate_up, case.out)
        self.swiglu.launch(args)
        spent = []
        for _ in range(20):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(100):
                self.swiglu.launch(args)
            spent.append((time.perf_counter() - started) * 1e4)
        say(f"    host time of a launch through ctypes: {sorted(spent)[10]:.1f} us")

    def check_the_checker(self) -> None:
        """Planted errors must be found."""
        problems = []
        case = make_case(257, 520, 896)
        self.swiglu(case.x, case.gate_up, case.out)
        expected, slack = reference(case.x, case.gate_up, abi.SILU)
        if faults(case.out, expected, slack):
            problems.append("the unharmed output is refused")
        value = case.out[200, 77].item()
        case.out[200, 77] = value * 1.02
        if not faults(case.out, expected, slack):
            problems.append("one element 2 % off was not found")
        n = expected.shape[1]
        swapped = torch.cat([case.gate_up[n:], case.gate_up[:n]])
        self.swiglu(case.x, swapped, case.out)
        if not faults(case.out, expected, slack):
            problems.append("swapped halves were not found")
        case.frame[0, 0] = 1
        if not frame_fault(case):
            problems.append("a write to a guard row was not found")
        self.group("planted errors", problems, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="fewer shapes, for sanitizers")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    checker = Checker(options.library, options.seed)
    say(f"{torch.cuda.get_device_name()} {checker.swiglu.library.swiglu_build_info().decode()}")
    checker.check_empty()
    checker.check_refusals()
    checker.check_the_checker()
    checker.check_shapes(0 if options.quick else 20)
    checker.check_types()
    checker.check_special_values()
    checker.check_graph()
    checker.show_host_time()
    checker.check_repeats(3 if options.quick else options.repeats)
    if not options.quick:
        checker.check_models()
        checker.check_large()
    say(f"{checker.failures} failures")
    return int(checker.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
