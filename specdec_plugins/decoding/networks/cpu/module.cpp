// The kernels as a Python module, which ops.py and products.py call.

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "isa.h"
#include "rounds.h"
#include "stack.h"
#include "tensor.h"

namespace specdec {

#define STRING_(x) #x
#define STRING(x) STRING_(x)

// The baseline: no instruction set beyond what the compiler assumes.
#define ISA plain
#define LANES 4
#define VECTORS 2
#define HAS_HALF 0
#include "kernels.inc"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_X86 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define ISA avx2
#define LANES 8
#define VECTORS 2
#define HAS_HALF 1
#define WITH_MADDUBS
#include "kernels.inc"
#pragma GCC pop_options

#if __GNUC__ >= 11
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#define ISA avxvnni
#define LANES 8
#define VECTORS 2
#define HAS_HALF 1
#define DPBUSD(sums, x, w) ints(_mm256_dpbusd_avx_epi32(__m256i(sums), __m256i(x), __m256i(w)))
#include "kernels.inc"
#pragma GCC pop_options
#endif

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#define ISA avx512
#define LANES 16
#define VECTORS 4
#define HAS_HALF 1
#define DPBUSD(sums, x, w) ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(x), __m512i(w)))
#include "kernels.inc"
#pragma GCC pop_options

#if defined(__linux__) && __GNUC__ >= 11
#define WITH_MATRICES 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#pragma GCC target("amx-tile,amx-int8")
#define ISA amx
#define LANES 16
#define VECTORS 4
#define HAS_HALF 1
#define WITH_AMX
#define DPBUSD(sums, x, w) ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(x), __m512i(w)))
#include "kernels.inc"
#pragma GCC pop_options

// A process must ask the system for the registers of the matrix unit.
static bool may_use_matrices() {
  constexpr int kRequest = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-int8") && syscall(SYS_arch_prctl, kRequest, kTiles) == 0;
}
#endif
#else
#define WITH_X86 0
#endif

std::vector<const Isa*> usable() {
  std::vector<const Isa*> found;
#if WITH_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 =
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if WITH_MATRICES
  if (has_avx512 && may_use_matrices()) found.push_back(&amx::isa);
#endif
  if (has_avx512) found.push_back(&avx512::isa);
#if __GNUC__ >= 11
  if (has_avx2 && __builtin_cpu_supports("avxvnni")) found.push_back(&avxvnni::isa);
#endif
  if (has_avx2) found.push_back(&avx2::isa);
#endif
  found.push_back(&plain::isa);
  const char* wanted = std::getenv("SPECDEC_INSTRUCTION_SET");
  if (wanted && *wanted) {
    const auto named = [&](const Isa* isa) { return !std::strcmp(isa->name, wanted); };
    const auto at = std::find_if(found.begin(), found.end(), named);
    if (at == found.end())
      throw std::invalid_argument(std::string("SPECDEC_INSTRUCTION_SET: this processor cannot run ") +
                                  wanted);
    std::rotate(found.begin(), at, at + 1);
  }
  return found;
}

// Looked up once, as every round needs it.
static const Isa& best_isa() {
  static const Isa& isa = isa_of("");
  return isa;
}

// Calls work(row) for every row, distributed over the threads.
template <typename Work>
static void for_rows(int64_t rows, int threads, const Work& work) {
  in_team(int(std::min<int64_t>(rows, threads)), [&](int thread, int team) {
    for (int64_t row = rows * thread / team; row < rows * (thread + 1) / team; ++row) work(row);
  });
}

// `out` has an entry for each row of logits: of all but their last axis.

static void best(const Floats& logits, const Tensor<int64_t>& out, int threads) {
  const int width = int(logits.size(-1));
  const auto best_of = best_isa().best_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    out.data[row] = best_of(logits.data + row * width, width);
  });
}

static void log_total(const Floats& logits, const Tensor<float>& out, int threads) {
  const int width = int(logits.size(-1));
  const auto log_total_of = best_isa().log_total_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    out.data[row] = log_total_of(logits.data + row * width, width);
  });
}

static void rank(const Floats& logits, const Integers& tokens, const Tensor<int64_t>& out,
                 int threads) {
  const int width = int(logits.size(-1));
  const auto rank_of = best_isa().rank_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    out.data[row] = rank_of(logits.data + row * width, width, tokens.data[row]);
  });
}

// Reads the logits of a row only up to the first mismatch with its draft.
static void leading_best(const Floats& logits, const Integers& drafted, const Integers& lengths,
                         const Tensor<int64_t>& num_kept, const Tensor<int64_t>& behind,
                         int threads) {
  const int64_t columns = logits.size(1);
  const int width = int(logits.size(2));
  const auto best_of = best_isa().best_of;
  for_rows(num_kept.count(), threads, [&](int64_t row) {
    int64_t kept = 0, own = 0;
    for (;; ++kept) {
      own = best_of(logits.data + (row * columns + kept) * width, width);
      if (kept >= lengths.data[row] || drafted.data[row * (columns - 1) + kept] != own) break;
    }
    num_kept.data[row] = kept;
    behind.data[row] = own;
  });
}

// Which active rows fail: the largest of their logits at `columns` [B] is not finite.
static void failed(const Floats& logits, const Integers& columns, const Tensor<const bool>& active,
                   const Tensor<bool>& out) {
  const int64_t length = logits.size(1), width = logits.size(2);
  for (int64_t row = 0; row < out.count(); ++row) {
    const int64_t column = std::clamp<int64_t>(columns.data[row], 0, length - 1);
    const float* own = logits.data + (row * length + column) * width;
    out.data[row] = active.data[row] && !are_numbers(own, width);
  }
}

static void leading_log_prob(const Floats& logits, const Integers& tokens, const Integers& lengths,
                             const Tensor<double>& sums, int threads) {
  const int64_t columns = logits.size(1);
  const int width = int(logits.size(2));
  const auto log_total_of = best_isa().log_total_of;
  for_rows(sums.count(), threads, [&](int64_t row) {
    double sum = 0;
    for (int64_t entry = row * columns; entry < row * columns + lengths.data[row]; ++entry) {
      const float* own = logits.data + entry * width;
      sum += double(own[tokens.data[entry]]) - log_total_of(own, width);
    }
    sums.data[row] = sum;
  });
}

static void best_paths(const Floats& logits, const Integers& before,
                       const Tensor<const int32_t>& starts, const Tensor<const int32_t>& tokens,
                       const Floats& log_probs, const Floats& backoffs, const Floats& frequencies,
                       float weight, int candidates, const Tensor<int64_t>& paths, int threads) {
  const Bigrams bigrams{starts.data, tokens.data, log_probs.data, backoffs.data, frequencies.data};
  const int length = int(logits.size(1)), width = int(logits.size(2));
  for_rows(logits.size(0), threads, [&](int64_t row) {
    best_path(logits.data + row * length * width, length, width, before.data[row], bigrams, weight,
              candidates, best_isa(), paths.data + row * length);
  });
}

// The input of a block drafter: scaled embeddings, and the embeddings of the positions. A `mask`
// token gets a mixture of the source's embeddings, by the query of its position.
static void embed_block(const Integers& tokens, const Floats& table, float scale,
                        const Integers& positions, const Floats& position_table, int64_t offset,
                        int64_t last, int64_t mask, const std::optional<Floats>& queries,
                        const std::optional<Tensor<const float, true>>& keys,
                        const std::optional<Tensor<const float, true>>& values,
                        const std::optional<Floats>& source_mask, const Tensor<float>& out,
                        const Tensor<float>& places) {
  const int64_t dim = table.size(1), width = tokens.size(1);
  const Mask seen = mask_of(source_mask, keys ? int(keys->size(1)) : 0);
  std::vector<float> scores(seen.width + 16);
  for (int64_t i = 0; i < tokens.count(); ++i) {
    const int64_t row = i / width, token = tokens.data[i];
    const int64_t at = (std::clamp<int64_t>(positions.data[i], 0, last) + offset) * dim;
    float* own = out.data + i * dim;
    check_token(token, table.size(0));
    if (queries && token == mask) {
      const Attended source{keys->data + row * keys->row_stride,
                            values->data + row * values->row_stride, dim,
                            seen.data ? seen.data + row * seen.row_stride : nullptr, seen.width,
                            seen.has_gaps};
      best_isa().attend(queries->data + at, source, int(dim), 1.0f, scores.data(), own);
    } else {
      std::copy_n(table.data + token * dim, dim, own);
    }
    for (int64_t j = 0; j < dim; ++j) own[j] *= scale;
    std::copy_n(position_table.data + at, dim, places.data + i * dim);
  }
}

// The embedding tables of a decoder, and its layers.
struct Tables {
  Floats tokens;
  float scale;
  Floats positions;
  int64_t offset, last;
  std::shared_ptr<Stack> stack;
};

// New tokens of every row: positions, masks, and where they go in the storage of all rows.
struct Window {
  Owned<int64_t> positions, at;
  Owned<float> seen;
  Window(const Owned<int64_t>& tokens, const Integers& cached, const Tensor<float, true>& storage,
         int live, const std::optional<Integers>& last_seen = {})
      : positions(tokens.sizes),
        at({tokens.sizes[0] * tokens.sizes[1]}),
        seen({tokens.sizes[0], 1, tokens.sizes[1], live}) {
    const int64_t rows = tokens.sizes[0], capacity = storage.size(1) / rows;
    const int64_t most = *std::max_element(cached.data, cached.data + rows);
    if (most + tokens.sizes[1] > live || live > capacity)
      throw std::out_of_range("a pass is longer than there is room for in the cache");
    open_window(cached, last_seen, 0, capacity, positions.written(), at.written(), seen.written());
  }
};

// A verifier's pass over committed and drafted tokens, up to the logits, in one call: the functions
// named here, one after the other.
class Scorer {
 public:
  Scorer(Tables tables, std::shared_ptr<PackedWeights> output)
      : own_(std::move(tables)), output_(std::move(output)) {}

  void score(const Integers& prefix, const Integers& lengths, const Integers& draft,
             const Integers& num_drafted, int64_t pad, const Integers& cached,
             const Tensor<float, true>& storage, int live,
             const std::vector<Tensor<const float, true>>& source,
             const std::optional<Floats>& source_mask, const Tensor<float>& logits,
             int threads) const {
    const int64_t rows = lengths.count(), width = draft.size(1) + 1, dim = own_.tokens.size(1);
    Owned<int64_t> tokens({rows, width});
    scored_tokens(prefix, lengths, draft, num_drafted, pad, tokens.written());
    Window window(tokens, cached, storage, live);
    Owned<float> x({rows, width, dim}), states({rows, width, dim});
    embed(tokens.read(), own_.tokens, own_.scale, window.positions.read(), own_.positions,
          own_.offset, own_.last, x.written());
    own_.stack->run(x.read(), states.written(), 0, own_.stack->size(), window.seen.read(), storage,
                    window.at.read(), source, source_mask, std::nullopt, std::nullopt, threads);
    output_->multiply(states.read(), logits, threads);
  }

 private:
  Tables own_;
  std::shared_ptr<PackedWeights> output_;
};

// A block drafter that chooses among listed types, from prefixes to drafts, likewise.
class BlockDrafter {
 public:
  BlockDrafter(Tables tables, int64_t mask, int64_t pad, std::optional<Floats> queries,
               std::shared_ptr<Head> head)
      : own_(std::move(tables)),
        mask_(mask),
        pad_(pad),
        queries_(std::move(queries)),
        head_(std::move(head)) {}

  // Returns the longest of the draft lengths `counts`, cut at `budget` and after an eos.
  int64_t draft(const Integers& prefix, const Integers& lengths, const Integers& num_masks,
                const Integers& budget, int64_t eos, const Integers& cached,
                const Tensor<float, true>& storage, int live,
                const std::vector<Tensor<const float, true>>& source,
                const std::optional<Floats>& source_mask,
                const std::vector<Tensor<const float, true>>& copied,
                const std::vector<std::shared_ptr<PackedWeights>>& lists,
                const std::vector<Tensor<const int32_t>>& types, int candidates,
                const Tensor<int64_t>& drafted, const Tensor<int64_t>& counts,
                const Tensor<float>& confidences, int threads) const {
    const int64_t rows = lengths.count(), dim = own_.tokens.size(1), used = drafted.size(1);
    Owned<int64_t> before({rows});
    int64_t lacking = 0, masks = used;  // the most of any row
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t known = lengths.data[row] - 1;
      lacking = std::max(lacking, known - cached.data[row]);
      masks = std::max(masks, num_masks.data[row]);
      before.values[row] = prefix.data[row * prefix.size(1) + known];
    }
    const int64_t width = lacking + masks;
    Owned<int64_t> tokens({rows, width}), last_seen({rows, width}), columns({rows, used});
    open_block(prefix, lengths, cached, num_masks, mask_, pad_, tokens.written(),
               last_seen.written(), columns.written());
    Window window(tokens, cached, storage, live, last_seen.read());
    Owned<float> x({rows, width, dim}), places({rows, width, dim}), states({rows, used, dim});
    std::optional<Tensor<const float, true>> keys, values;
    if (!copied.empty()) keys = copied.at(0), values = copied.at(1);
    embed_block(tokens.read(), own_.tokens, own_.scale, window.positions.read(), own_.positions,
                own_.offset, own_.last, mask_, queries_, keys, values, source_mask, x.written(),
                places.written());
    own_.stack->run(x.read(), states.written(), 0, own_.stack->size(), window.seen.read(), storage,
                    window.at.read(), source, source_mask, places.read(), columns.read(), threads);
    walk_blocks(states.read(), std::nullopt, lists, types, before.read(), own_.tokens, *head_,
                source, source_mask, candidates, drafted, confidences, threads);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t most = std::clamp<int64_t>(budget.data[row], 0, used);
      counts.data[row] = up_to_eos(drafted.data + row * used, most, eos);
    }
    return *std::max_element(counts.data, counts.data + rows);
  }

 private:
  Tables own_;
  int64_t mask_, pad_;
  std::optional<Floats> queries_;
  std::shared_ptr<Head> head_;
};

}  // namespace specdec

PYBIND11_MODULE(_kernels, module) {
  namespace py = pybind11;
  using namespace specdec;
  module.doc() = "Kernels whose result for a row depends on that row alone.";
  module.def("instruction_sets", [] {
    std::vector<std::string> found;
    for (const Isa* isa : usable()) found.emplace_back(isa->name);
    return found;
  });
  Torch::load();
  const auto arg = [](const char* name) { return py::arg(name); };
  module.def("best", &best);
  module.def("log_total", &log_total);
  module.def("rank", &rank);
  module.def("leading_best", &leading_best, arg("logits"), arg("drafted"), arg("lengths"),
             arg("num_kept"), arg("behind"), arg("threads"));
  module.def("failed", &failed, arg("logits"), arg("columns"), arg("active"), arg("out"));
  module.def("leading_log_prob", &leading_log_prob, arg("logits"), arg("tokens"), arg("lengths"),
             arg("sums"), arg("threads"));
  module.def("best_paths", &best_paths, arg("logits"), arg("before"), arg("starts"), arg("tokens"),
             arg("log_probs"), arg("backoffs"), arg("frequencies"), arg("weight"),
             arg("candidates"), arg("paths"), arg("threads"));
  module.def("walk_blocks", &walk_blocks, arg("states"), arg("logits"), arg("lists"),
             arg("types"), arg("before"), arg("embeddings"), arg("head"), arg("source"),
             arg("source_mask"), arg("candidates"), arg("drafted"), arg("confidences"),
             arg("threads"));
  module.def("count_tokens", &count_tokens, arg("tokens"), arg("pad"), arg("positions"),
             arg("padding"));
  module.def("embed", &embed, arg("tokens"), arg("table"), arg("scale"), arg("positions"),
             arg("position_table"), arg("offset"), arg("last"), arg("out"));
  module.def("embed_block", &embed_block, arg("tokens"), arg("table"), arg("scale"),
             arg("positions"), arg("position_table"), arg("offset"), arg("last"), arg("mask"),
             arg("queries"), arg("keys"), arg("values"), arg("source_mask"), arg("out"),
             arg("places"));
  module.def("list_types", &list_types, arg("source_ids"), arg("starts"), arg("types"),
             arg("common"), arg("out"));
  module.def("open_window", &open_window, arg("lengths"), arg("last_seen"), arg("skip"),
             arg("capacity"), arg("positions"), arg("at"), arg("mask"));
  module.def("open_block", &open_block, arg("prefix"), arg("lengths"), arg("cached"),
             arg("num_masks"), arg("mask"), arg("pad"), arg("tokens"), arg("last_seen"),
             arg("used"));
  module.def("until_eos", &until_eos, arg("tokens"), arg("lengths"), arg("eos"), arg("kept"),
             arg("ended"));
  module.def("follow", &follow, arg("hints"), arg("prefix"), arg("lengths"), arg("drafted"),
             arg("num_drafted"), arg("budget"), arg("min_ngram"), arg("max_ngram"), arg("eos"),
             arg("tokens"), arg("counts"), arg("matched"));
  module.def("count_judged", &count_judged, arg("lengths"), arg("accepted"), arg("counts"),
             arg("pool"), arg("decay"));
  module.def("best_width", &best_width, arg("counts"), arg("pool"), arg("block"), arg("costs"),
             arg("weight"), arg("margin"));
  module.def("extend", &extend, arg("draft"), arg("num_accepted"), arg("next_tokens"),
             arg("max_len"), arg("eos"), arg("prefix"), arg("prefix_lengths"), arg("active"),
             arg("tokens"), arg("lengths"), arg("accepted"), arg("ended"), arg("full"));
  module.def("fit_budget", &fit_budget, arg("wanted"), arg("max_len"), arg("lengths"),
             arg("active"), arg("own"), arg("positions"), arg("fitted"));
  module.def("scored_tokens", &scored_tokens, arg("prefix"), arg("lengths"), arg("draft"),
             arg("num_drafted"), arg("pad"), arg("out"));
  py::class_<PackedWeights, std::shared_ptr<PackedWeights>>(module, "PackedWeights")
      .def(py::init<const Floats&, const std::optional<Floats>&, bool, const std::string&>(),
           arg("weight"), arg("bias"), arg("int8"), arg("instruction_set"))
      .def_property_readonly("bits", &PackedWeights::bits)
      .def("multiply", &PackedWeights::multiply, arg("x"), arg("out"), arg("threads"));
  py::class_<Choices>(module, "Choices")
      .def(py::init<Floats, const PackedWeights&>(), arg("weight"), arg("like"))
      .def("pick", &Choices::pick, arg("outputs"));
  py::class_<Stack, std::shared_ptr<Stack>>(module, "Stack")
      .def(py::init<int, int, int>(), arg("dim"), arg("heads"), arg("ffn"))
      .def("add", &Stack::add, arg("products"), arg("norms"), arg("norm_before"),
           arg("activation"))
      .def("run", &Stack::run, arg("x"), arg("out"), arg("first"), arg("stop"), arg("mask"),
           arg("storage"), arg("at"), arg("source"), arg("source_mask"), arg("positions"),
           arg("columns"), arg("threads"));
  py::class_<Tables>(module, "Tables")
      .def(py::init<Floats, float, Floats, int64_t, int64_t, std::shared_ptr<Stack>>(),
           arg("tokens"), arg("scale"), arg("positions"), arg("offset"), arg("last"), arg("stack"));
  py::class_<Head, std::shared_ptr<Head>>(module, "Head")
      .def(py::init<Tensor<const Bfloat16>, std::shared_ptr<PackedWeights>,
                    std::shared_ptr<PackedWeights>, std::shared_ptr<PackedWeights>, int>(),
           arg("table"), arg("state"), arg("out"), arg("context"), arg("heads"));
  py::class_<Scorer>(module, "Scorer")
      .def(py::init<Tables, std::shared_ptr<PackedWeights>>(), arg("tables"), arg("output"))
      .def("score", &Scorer::score, arg("prefix"), arg("lengths"), arg("draft"),
           arg("num_drafted"), arg("pad"), arg("cached"), arg("storage"), arg("live"),
           arg("source"), arg("source_mask"), arg("logits"), arg("threads"));
  py::class_<BlockDrafter>(module, "BlockDrafter")
      .def(py::init<Tables, int64_t, int64_t, std::optional<Floats>, std::shared_ptr<Head>>(),
           arg("tables"), arg("mask"), arg("pad"), arg("queries"), arg("head"))
      .def("draft", &BlockDrafter::draft, arg("prefix"), arg("lengths"), arg("num_masks"),
           arg("budget"), arg("eos"), arg("cached"), arg("storage"), arg("live"), arg("source"),
           arg("source_mask"), arg("copied"), arg("lists"), arg("types"), arg("candidates"),
           arg("drafted"), arg("counts"), arg("confidences"), arg("threads"));
}
