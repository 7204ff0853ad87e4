"""How far the presets `cpu` and `h200` are off what was measured: a section of docs/simulate.md.

    PYTHONPATH=python:. python -m benchmarks.calibration            # prints the tables
    PYTHONPATH=python:. python -m benchmarks.calibration --fit cpu  # fits anew, prints a target

From benchmarks/results/profiles_*, as `merge_profiles.py` writes them. Every second distinct
command is kept out of a fit, and all of the models in `HELD_OUT` and `OTHERS`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from npusim.profile.profile import Profile
from npusim.profile.saved import read_profile
from npusim.simulate.calibrate import (
    Calibration,
    ClassError,
    RunError,
    calibrate,
    held_out,
    target_file,
)
from npusim.targets import TargetConfig
from npusim.targets.roofline import Roofline

RESULTS = Path(__file__).parent / "results"
LAYERS = "SideBySide"  # what profiles of single layers are of
DEVICES = {
    "h200": "H200; layers in float16 and float32, decoders in bfloat16.",
    "cpu": "Two cores of a virtual machine on an AMD EPYC of the fourth generation (Zen 4, "
    "AVX-512), two threads; layers in float32, decoders in bfloat16. Of up to six passes the "
    "median of each; all but decoders while the cores were neighbours.",
}
HELD_OUT = {
    "resnet50": "ResNet-50, one image",
    "bert_base": "BERT-base, 128 tokens",
    "prefill": "Qwen2.5-1.5B's sizes, 128 tokens behind 1,024",
    "decode": "the same, one token",
}
OTHERS = {
    "llama1b_prefill": "a decoder of Llama-3.2-1B's sizes, 128 tokens behind 700",
    "llama1b_decode": "the same, one token",
    "smollm_prefill": "a decoder of SmolLM2-135M's sizes, 128 tokens behind 400",
    "smollm_decode": "the same, one token",
    "minilm": "an encoder of MiniLM's sizes, 64 tokens",
    "mobilenet_v3_large": "MobileNetV3-Large, one image",
    "resnet34": "ResNet-34, one image",
    "unet": "a U-Net of 64 by 64 points",
    "resnet50_float32": "ResNet-50 in float32, one image",
    "bert_base_float32": "BERT-base in float32, 128 tokens",
    "minilm_float32": "an encoder of MiniLM's sizes in float32",
    "mobilenet_v3_large_float32": "MobileNetV3-Large in float32, one image",
    "resnet34_float32": "ResNet-34 in float32, one image",
    "unet_float32": "a U-Net of 64 by 64 points in float32",
}  # kept out, too
UNSEEN = {
    "diffusion_unet": "a diffusion model's U-Net, 64 by 64 points",
    "regnet_y": "RegNetY-1.6GF",
    "poolformer": "PoolFormer-S12",
    "dpt": "DPT, 384 by 384 points",
    "mobilevit": "MobileViT-S, 256 by 256 points",
    "bart": "BART, 128 tokens",
}
COMPARED = {
    "detector": "a one-stage detector, 640 by 640 points",
    "rt_detr": "RT-DETR, 640 by 640 points",
    "unet_256": "a U-Net with batch norms, 256 by 256 points",
    "vgg16": "VGG-16",
    "super_resolution": "EDSR, 128 by 128 points",
    "mixer": "an MLP-Mixer, S/16",
    "gpt2": "GPT-2, 128 tokens",
    "speech_lstm": "an LSTM of 80 and 256, 50 steps",
    "hifigan": "HiFi-GAN, 100 frames",
    "autoencoder": "a diffusion model's autoencoder",
    "efficientnet_b0": "EfficientNet-B0",
    "densenet121": "DenseNet-121",
    "vgg11_bn": "VGG-11",
    "swin_t": "Swin-T",
    "distilbert": "DistilBERT, 384 tokens",
    "t5_encoder": "T5-small's encoder, 128 tokens",
    "whisper_encoder": "Whisper-tiny's encoder",
    "segformer_b0": "SegFormer-B0, 512 by 512 points",
    "lstm": "an LSTM of two layers of 512, 64 steps",
    "gru": "a GRU of two layers of 768, 32 steps",
    "resnet50_bfloat16": "ResNet-50 in bfloat16",
    "bert_base_bfloat16": "BERT-base in bfloat16",
    "resnet50_int8": "ResNet-50 in int8",
    "mobilenet_v2_int8": "MobileNetV2 in int8",
}
DRAWN = {
    "beit_4": "four layers of BEiT",
    "controller": "a controller of a few layers",
    "data2vec_audio_4": "four layers of Data2Vec, a second of sound",
    "digits": "LeNet",
    "electra_small": "ELECTRA-small, 128 tokens",
    "glpn": "GLPN, 256 by 256 points",
    "modernbert": "ModernBERT, 256 tokens",
    "patchtsmixer": "PatchTSMixer",
    "regnet": "a RegNet of transformers",
    "separator": "Conv-TasNet",
    "siglip_vision_4": "four layers of SigLIP",
    "speech_encoder": "Whisper-base's encoder",
    "text_reader": "CRNN",
    "volumes": "convolutions of volumes",
}
DRAWN_BEFORE = {
    "albert": "ALBERT",
    "atari": "a network of Atari games",
    "dilated": "dilated convolutions over time",
    "gmlp_s16": "gMLP-S/16",
    "gpt_neox_prompt": "a prompt of GPT-NeoX's kind",
    "graph_attention": "graph attention",
    "hubert_4": "four layers of HuBERT, a second of sound",
    "llama_prompt": "a prompt of Llama's kind",
    "lstm_batch": "an LSTM of few steps",
    "lstm_both": "an LSTM of both directions",
    "lstm_large": "a large LSTM",
    "mel_vocoder": "MelGAN's generator",
    "mobilenet_v1": "MobileNetV1",
    "patchtst": "PatchTST",
    "points": "PointNet",
    "recommender": "DLRM",
    "rnn": "an RNN of 50 steps",
    "roformer_4": "four layers of RoFormer",
}
GPU_UNSEEN = {
    "distilbert_384": "DistilBERT, 384 tokens",
    "timm_beit_base_patch16_224": "BEiT-B/16",
    "timm_hardcorenas_a": "HardCoRe-NAS-A",
    "timm_hgnet_tiny": "HGNet-T",
    "timm_inception_next_tiny": "InceptionNeXt-T",
    "timm_lambda_resnet26t": "Lambda-ResNet-26-T",
    "timm_mvitv2_tiny": "MViTv2-T",
    "timm_pit_s_224": "PiT-S",
    "timm_poolformerv2_s12": "PoolFormerV2-S12",
    "timm_regnetz_b16": "RegNetZ-B16",
    "timm_repvit_m1": "RepViT-M1",
    "timm_res2net50_26w_4s": "Res2Net-50",
    "timm_vitamin_small_224": "ViTamin-S",
    "torchvision_inception_v3": "Inception v3",
}
GPU_COMPARED = {
    "dinov2": "DINOv2-S",
    "gpt2": "GPT-2",
    "resnet50": "ResNet-50",
    "segformer_b0": "SegFormer-B0",
    "timm_coat_lite_tiny": "CoaT-Lite Tiny",
    "timm_convmixer_768_32": "ConvMixer-768/32",
    "timm_cs3darknet_s": "CS3Darknet-S",
    "timm_efficientvit_b1": "EfficientViT-B1",
    "timm_fasternet_t1": "FasterNet-T1",
    "timm_hrnet_w18_small": "HRNet-W18 small",
    "timm_lcnet_100": "LCNet-100",
    "timm_mixer_b16_224": "MLP-Mixer-B/16",
    "timm_volo_d1_224": "VOLO-D1",
    "vit_b_16": "ViT-B/16",
}
GPU_UNSEEN_SAYS = (
    "models that nothing was chosen by**. Batches of 8, drawn from those whose speed was measured; "
    "looked at once, when classes and numbers stood fast, and again when patches and group norms "
    "had rules; numbers of patches were fitted to half of their commands here, by which it is no "
    "longer true of these. Commands of all of them by class."
)
GPU_COMPARED_SAYS = (
    "Models by eights in float16 that no number was fitted to either, but whose misses with the "
    "numbers before chose classes:"
)
UNSEEN_SAYS = (
    "what nothing was chosen by**. Shapes of another seed, some of products measured twice, and "
    "models that were never compared before, in one state of the machine by `machine_state.cpp`; "
    "looked at once, when classes and numbers stood fast, but for the last numbers of `winograd`."
)
COMPARED_SAYS = (
    "Models that no number was fitted to either, but that were compared with the numbers before:"
)
DRAWN_SAYS = (
    "Models drawn from all that the benchmarks can build without a library of models, looked at "
    "when classes and numbers stood fast:"
)
DRAWN_BEFORE_SAYS = (
    "The same, drawn before, whose misses showed what small networks lacked, and that runs below a "
    "millisecond wake no cores; no number was fitted to them:"
)
NAMES = {**HELD_OUT, **OTHERS, **UNSEEN, **COMPARED, **DRAWN, **DRAWN_BEFORE}


@cache
def profiles(device: str) -> Mapping[str, Profile]:
    """Returns the profiles of a device by name."""
    paths = sorted((RESULTS / f"profiles_{device}").glob("*.json"))
    return {path.stem: read_profile(path) for path in paths}


def roofline(device: str) -> Roofline:
    """Returns what the preset says."""
    hardware = TargetConfig.named(device).hardware
    assert hardware is not None and hardware.roofline is not None
    return hardware.roofline


def halves(device: str) -> tuple[list[Profile], dict[str, Profile]]:
    """Returns the profiles that a device is fitted to, and by name those of models kept out."""
    found = profiles(device)
    kept = {name: found[name] for name in (*HELD_OUT, *OTHERS) if name in found}
    return [profile for name, profile in found.items() if name not in kept], kept


def fitted(device: str) -> Calibration:
    """Fits a preset's classes to the profiles anew."""
    learnt, kept = halves(device)
    models = [profile for profile in learnt if profile.model != LAYERS]
    layers = [profile for profile in learnt if profile.model == LAYERS]
    return calibrate(models, roofline(device), list(kept.values()), layers)


def tables() -> str:
    """Returns both devices' errors as Markdown, and those of what no fit has seen."""
    lines: list[str] = []
    for device, says in DEVICES.items():
        learnt, kept = halves(device)
        classes, runs = held_out(learnt, roofline(device), list(kept.values()))
        lines += ["", f"**`{device}`**. {says}", "", *_class_table(classes)]
        lines += ["", *_run_table(f"profiles_{device}", list(kept), runs)]
    for dtype, end in (("float16", ""), ("float32", "_float32")):
        told = {name + end: said for name, said in GPU_UNSEEN.items()}
        models = list(unseen_models(told, "h200_unseen").items())
        runs_of = [profile for _, profile in models]
        classes, runs = held_out(runs_of, roofline("h200"), runs_of, unseen=True)
        lines += ["", f"**`h200` in {dtype}, {GPU_UNSEEN_SAYS}", "", *_class_table(classes)]
        lines += ["", *_run_table("profiles_h200_unseen", [n for n, _ in models], runs, told)]
    batches = unseen_models(GPU_COMPARED, "h200_unseen")
    runs = held_out([], roofline("h200"), list(batches.values()))[1]
    lines += ["", GPU_COMPARED_SAYS, ""]
    lines += _run_table("profiles_h200_unseen", list(batches), runs, GPU_COMPARED)
    lines += ["", f"**`cpu`, {UNSEEN_SAYS}", "", *_class_table(unseen()[0])]
    lines += ["", *_run_table("profiles_cpu_unseen", list(unseen_models()), unseen()[1])]
    for names, says in (
        *((DRAWN, DRAWN_SAYS), (DRAWN_BEFORE, DRAWN_BEFORE_SAYS), (COMPARED, COMPARED_SAYS)),
    ):
        compared = unseen_models(names)
        runs = held_out([], roofline("cpu"), list(compared.values()))[1]
        lines += ["", says, "", *_run_table("profiles_cpu_unseen", list(compared), runs)]
    return "\n".join(lines[1:])


def unseen() -> tuple[tuple[ClassError, ...], tuple[RunError, ...]]:
    """Returns the errors of the preset `cpu` at shapes of another seed, and at other models."""
    found, models = profiles("cpu_unseen"), unseen_models()
    layers = [profile for name, profile in found.items() if name not in NAMES]
    return held_out(layers, roofline("cpu"), list(models.values()), unseen=True)


def unseen_models(names: Iterable[str] = UNSEEN, device: str = "cpu_unseen") -> dict[str, Profile]:
    """Returns the profiles of models that no fit has seen, by name."""
    found = profiles(device)
    return {name: found[name] for name in names if name in found}


def _class_table(classes: Sequence[ClassError]) -> Iterator[str]:
    yield "| class | kept out | mean | median | 95th percentile |"
    yield "|---|---:|---:|---:|---:|"
    for one in classes:
        errors = " | ".join(f"{100 * x:.1f} %" for x in (one.mean, one.median, one.worst))
        yield f"| {one.name} | {one.held_out} | {errors} |"


def _run_table(
    folder: str, names: list[str], runs: Sequence[RunError], told: Mapping[str, str] = NAMES
) -> Iterator[str]:
    passes = json.loads((RESULTS / folder / "passes.txt").read_text())
    columns = ("predicted", "commands", "measured", "error", "beyond", "passes")
    yield f"| whole run, kept out | {' | '.join(columns)} |"
    yield "|---|" + "---:|" * len(columns)
    for name, run in zip(names, runs, strict=True):
        spread = "…".join(f"{1e3 * x:.3g}" for x in (min(passes[name]), max(passes[name])))
        times = (run.predicted, run.commands, run.measured)
        seconds = " | ".join(f"{1e3 * x:.3g} ms" for x in times)
        errors = " | ".join(f"{100 * x:+.1f} %" for x in (run.error, run.beyond))
        yield f"| {told[name]} | {seconds} | {errors} | {spread} ms |"


def main() -> None:
    """Reads the command line, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", choices=sorted(DEVICES))
    args = parser.parse_args()
    if args.fit:
        found = fitted(args.fit)
        print(target_file(found, args.fit, args.fit))
    else:
        print(tables())


if __name__ == "__main__":
    main()
