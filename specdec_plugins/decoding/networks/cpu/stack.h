// Weights in the layout of the kernels, the memory of a pass, and the layers of a stack.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "isa.h"
#include "rounds.h"
#include "tensor.h"

namespace specdec {

// Memory for weights, side by side in pages of 2 MB where the system provides them: a pass over all
// weights looks up every page again, in a virtual machine through two sets of tables. A pass of
// five rows took 10 to 20 % longer with pages of 4 KB. A region is freed with its last weights.
inline std::shared_ptr<void> weight_memory(size_t bytes) {
  constexpr size_t kPage = size_t(2) << 20, kRegion = 32 * kPage;
  static std::mutex mutex;
  static std::shared_ptr<char> region;
  static size_t used = 0, size = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!region || used + bytes > size || region.use_count() == 1) {
    size = std::max((bytes + kPage - 1) / kPage * kPage, kRegion);
    region.reset(static_cast<char*>(std::aligned_alloc(kPage, size)), std::free);
    if (!region) throw std::bad_alloc();
    used = 0;
#if defined(__linux__)
    madvise(region.get(), size, MADV_HUGEPAGE);  // optional: it works without
#endif
  }
  std::shared_ptr<void> taken(region, region.get() + used);
  used += (bytes + 63) / 64 * 64;
  return taken;
}

inline std::shared_ptr<void> scratch_memory(size_t bytes) {
  std::shared_ptr<void> taken(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
  if (!taken) throw std::bad_alloc();
  return taken;
}

template <typename T>
struct Aligned {
  T* data = nullptr;
  size_t size = 0;
  void grow(size_t wanted, std::shared_ptr<void> (*memory)(size_t) = scratch_memory) {
    if (wanted <= size) return;
    *this = {};  // before there are two
    owner = memory(wanted * sizeof(T));
    data = static_cast<T*>(owner.get());
    std::memset(data, 0, wanted * sizeof(T));
    size = wanted;
  }

 private:
  std::shared_ptr<void> owner;
};

// The memory of one pass. Each Python thread that decodes keeps its blocks from pass to pass, unless
// a pass was so long that asking for them again costs nothing beside it.
class Arena {
 public:
  // floats: of each part of a Scratch. rows, wide: of the largest input that is quantised; wide 0 =
  // none is. scores: of one thread.
  Arena(const std::vector<size_t>& floats, size_t rows, size_t wide, size_t scores, int threads) {
    const bool shares = rows > ROWS_ALONE;
    const size_t few = shares ? ROWS_ALONE : rows;
    scratch.steps_stride = padded(wide ? few : 0);
    scratch.scores_stride = padded(scores);
    scratch.codes_stride = padded(wide ? (few + 1) * (wide + 3) : 0);
    size_t total = threads * (scratch.steps_stride + scratch.scores_stride) + padded(shares ? rows : 0);
    for (size_t count : floats) total += padded(count);
    blocks().numbers.grow(total);
    blocks().bytes.grow(threads * scratch.codes_stride +
                        (shares && wide ? (rows + 1) * (wide + 3) : 0));
    float* next = blocks().numbers.data;
    const auto take = [&](size_t count) { return std::exchange(next, next + padded(count)); };
    float** const parts[] = {&scratch.x, &scratch.normed, &scratch.branch, &scratch.qkv,
                             &scratch.hidden};
    for (size_t i = 0; i < floats.size(); ++i) *parts[i] = take(floats[i]);
    scratch.steps = take(threads * scratch.steps_stride);
    scratch.scores = take(threads * scratch.scores_stride);
    scratch.shared_steps = next;
    scratch.codes = blocks().bytes.data;
    scratch.shared_codes = scratch.codes + threads * scratch.codes_stride;
  }
  Arena(const Arena&) = delete;
  ~Arena() {
    constexpr size_t kKept = size_t(32) << 20;  // bytes
    if (blocks().numbers.size * sizeof(float) > kKept) blocks().numbers = {};
    if (blocks().bytes.size > kKept) blocks().bytes = {};
  }

  Scratch scratch{};

 private:
  struct Blocks {
    Aligned<float> numbers;
    Aligned<uint8_t> bytes;
  };
  static Blocks& blocks() {
    thread_local Blocks own;
    return own;
  }
  static size_t padded(size_t count) { return (count + 63) / 64 * 64; }
};

// In lanes, so that the compiler vectorises it.
inline float largest_size(const float* x, int64_t count) {
  constexpr int kLanes = 16;
  float tops[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      tops[lane] = larger_of(tops[lane], std::fabs(x[k + lane]));
  float largest = 0;
  for (; k < count; ++k) largest = larger_of(largest, std::fabs(x[k]));
  for (float top : tops) largest = larger_of(largest, top);
  return largest;
}

// Rows of weights [out, in] in 8 bits, in their own order.
struct Codes {
  explicit Codes(const Floats<2>& weight) : in(int(weight.size(1))), width((in + 3) / 4 * 4) {
    constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: adding it rounds to even
    const int64_t rows = weight.size(0);
    all.resize(size_t(rows) * width);
    steps.resize(rows);
    sums.resize(rows);
    for (int64_t n = 0; n < rows; ++n) {
      const float* row = weight.data + n * in;
      const float largest = largest_size(row, in);
      const float inverse = 127 / largest;
      steps[n] = step_of(largest);
      if (!may_scale(inverse)) continue;
      for (int k = 0; k < in; ++k) {
        all[n * width + k] = int8_t(int((row[k] * inverse + kRounding) - kRounding));
        sums[n] += all[n * width + k];
      }
    }
  }

  int in, width;                // inputs, and the same padded to whole groups of 4
  std::vector<int8_t> all;      // [out, width]
  std::vector<float> steps;     // [out] of one code
  std::vector<int32_t> sums;    // [out] of the codes
};

// Weights [out, in] float32 of a linear layer, or some of its outputs in any order, copied into the
// kernels' own layout.
class PackedWeights {
 public:
  PackedWeights(const Floats<2>& weight, const std::optional<Floats<1>>& bias, bool int8,
                const std::string& instruction_set)
      : isa(isa_of(instruction_set)), num_all(weight.size(0)), memory_(weight_memory) {
    open(weight.size(0), weight.size(1));
    if (bias) {
      check_same("outputs", weight.size(0), bias->size(0));
      std::copy_n(bias->data, linear.out, bias_.data);
    }
    if (int8)
      pack_int8(Codes(weight));
    else if (!isa.has_half || !pack_half(weight.data))
      pack_float(weight.data);
  }

  // Some outputs of weights, without a bias; in 8 bits if there are `codes`.
  PackedWeights(const Floats<2>& weight, const Codes* codes, const Types& outputs, const Isa& isa)
      : isa(isa),
        types(outputs.data, outputs.data + outputs.count()),
        num_all(weight.size(0)),
        memory_(scratch_memory) {
    for (int32_t type : types) check_token(type, num_all);
    open(outputs.count(), weight.size(1));
    if (codes)
      pack_int8(*codes);
    else
      pack_float(weight.data);
  }

  // Bits of one weight.
  int bits() const { return linear.codes ? 8 : linear.halves ? 16 : 32; }

  // x: [..., in]; out: [..., out].
  template <int rank>
  void multiply(const Floats<rank>& x, const Tensor<float, rank>& out, int threads) const {
    check(x.axes > 0, "a product needs rows");
    check_same("inputs", linear.in, x.size(-1));
    const int rows = int(x.count() / linear.in);
    check_same("outputs", int64_t(rows) * linear.out, out.count());
    const Product product{x.data, rows, out.data};
    const Arena arena({}, rows, linear.codes ? linear.in : 0, 0, threads);
    in_team(threads, [&](int thread, int team) {
      isa.multiply(linear, product, arena.scratch, thread, team);
    });
  }

  const Isa& isa;
  const std::vector<int32_t> types;  // which outputs of a larger product; empty = all
  const int64_t num_all;             // outputs of that
  Linear linear;

 private:
  size_t padded() const { return size_t(panels_) * isa.panel; }  // outputs

  void open(int64_t out, int64_t in) {
    check(out > 0 && in > 0, "a product needs inputs and outputs");
    linear.out = int(out);
    linear.in = int(in);
    panels_ = (linear.out + isa.panel - 1) / isa.panel;
    bias_.grow(padded());
    linear.bias = bias_.data;
  }

  // Calls put(at, value) for every weight, with its place in the kernels' layout.
  template <typename Put>
  void lay_out(const float* weight, const Put& put) {
    const int panel = isa.panel;
    for (int first = 0; first < linear.out; first += panel) {
      std::vector<const float*> rows;
      for (int n = first; n < std::min(first + panel, linear.out); ++n)
        rows.push_back(weight + row_of(n) * linear.in);
      size_t at = size_t(first) * linear.in;
      for (int k = 0; k < linear.in; ++k, at += panel)
        for (size_t n = 0; n < rows.size(); ++n) put(at + n, rows[n][k]);
    }
  }

  void pack_float(const float* weight) {
    floats_.grow(padded() * linear.in, memory_);
    lay_out(weight, [&](size_t at, float value) { floats_.data[at] = value; });
    linear.weights = floats_.data;
  }

  // Weights that were stored in 16 bits still fit into 16 bits when they come as float32. Packed so
  // they are exact and take half the bytes, which products of few rows wait for. They are scaled to
  // the upper end of the range of float16: a model's own scale factors may be below it.
  // Returns false if one of them does not fit.
  bool pack_half(const float* weight) {
    const size_t count = size_t(linear.out) * linear.in;
    const float largest = largest_size(weight, int64_t(count));
    if (!(largest > 0 && largest < INFINITY)) return false;
    const float unit = std::ldexp(1.0f, std::ilogb(largest) - 15);
    uint16_t half;
    for (size_t i = 0; i < count; ++i)
      if (!as_half(weight[i] / unit, half)) return false;
    halves_.grow(padded() * linear.in, memory_);
    lay_out(weight, [&](size_t at, float value) { as_half(value / unit, halves_.data[at]); });
    linear.halves = halves_.data;
    linear.unit = unit;
    return true;
  }

  // Converts a float32 of less than 2^16 to float16; false if that is not exact.
  static bool as_half(float value, uint16_t& half) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const int exponent = int(bits >> 23 & 0xff) - 127;
    // Below 2^-14 float16 has fewer digits: all numbers are then multiples of 2^-24.
    const int lost = 13 + std::max(0, -14 - exponent);
    const uint32_t digits = (bits & 0x7fffff) | 0x800000;
    half = uint16_t(bits >> 16 & 0x8000);
    if ((bits & 0x7fffffff) == 0) return true;
    if (exponent > 15 || lost > 23 || digits & ((1u << lost) - 1)) return false;
    // The leading digit adds one to the exponent, or is the first digit where there is none.
    half |= uint16_t((std::max(exponent, -14) + 14) * 1024 + (digits >> lost));
    return true;
  }

  void pack_int8(const Codes& rows) {
    const int panel = isa.panel, groups = rows.width / 4;
    codes_.grow(padded() * rows.width, memory_);
    scale_.grow(padded());
    offset_.grow(padded());
    for (int n = 0; n < linear.out; ++n) {
      const int8_t* row = &rows.all[row_of(n) * rows.width];
      int8_t* out = codes_.data + (size_t(n / panel) * groups * panel + n % panel) * 4;
      for (int g = 0; g < groups; ++g, out += panel * 4) std::memcpy(out, row + g * 4, 4);
      scale_.data[n] = rows.steps[row_of(n)];
      offset_.data[n] = 128 * rows.sums[row_of(n)];
    }
    linear.codes = codes_.data;
    linear.scale = scale_.data;
    linear.offset = offset_.data;
  }

  size_t row_of(int n) const { return size_t(types.empty() ? n : types[n]); }

  int panels_ = 0;
  // Of weights for one sentence's outputs: they are small and short-lived.
  std::shared_ptr<void> (*const memory_)(size_t);
  Aligned<float> floats_, scale_, bias_;
  Aligned<int8_t> codes_;
  Aligned<uint16_t> halves_;
  Aligned<int32_t> offset_;
};

// Weights of which a few outputs are packed at a time; for 8 bits they are rounded only once.
class Choices {
 public:
  Choices(Floats<2> weight, const PackedWeights& like)
      : weight_(std::move(weight)),
        isa_(like.isa),
        codes_(like.linear.codes ? new Codes(weight_) : nullptr) {}

  std::shared_ptr<PackedWeights> pick(const Types& outputs) const {
    return std::make_shared<PackedWeights>(weight_, codes_.get(), outputs, isa_);
  }

 private:
  Floats<2> weight_;
  const Isa& isa_;
  std::unique_ptr<Codes> codes_;
};

using NormTensors = std::tuple<Floats<1>, Floats<1>, float>;  // gain, bias, epsilon

// Of an additive mask [rows or 1, 1, queries or 1, width], or none, where all `width` are seen.
inline Mask mask_of(const std::optional<Floats<4>>& mask, int64_t rows, int64_t asking, int width) {
  if (!mask) return {nullptr, 0, 0, width};
  const int64_t queries = mask->size(2), seen = mask->size(3);
  check((mask->size(0) == 1 || mask->size(0) == rows) && mask->size(1) == 1 &&
            (queries == 1 || queries == asking),
        "a mask has other rows or queries");
  return {mask->data, mask->size(0) > 1 ? queries * seen : 0, queries > 1 ? seen : 0, int(seen)};
}

// Keys and values of one layer's source, for a mask over them.
inline SourceStates states_of(const Rows<5>& source, int64_t rows, int dim, const Mask& mask) {
  check_same("rows", rows, source.size(0));
  check_same("source positions", mask.width, source.size(1));
  check_same("width", 2 * dim, source.size(2) * source.size(3) * source.size(4));
  return {source.data, source.row_stride};
}

// The layers of an encoder or a decoder.
class Stack {
 public:
  Stack(int dim, int heads, int ffn) : dim_(dim), heads_(heads), ffn_(ffn) {
    check(dim > 0 && heads > 0 && ffn > 0 && dim % heads == 0, "no such layers");
  }

  void add(const std::vector<std::shared_ptr<PackedWeights>>& products,
           const std::vector<NormTensors>& norms, bool norm_before, const std::string& activation) {
    Layer layer;
    layer.reads_source = products.size() == 6;
    layer.norm_before = norm_before;
    layer.activation = activation_of(activation);
    struct Part {
      Linear* linear;
      int in, out;
    };
    std::vector<Part> parts = {{&layer.qkv, dim_, 3 * dim_},
                               {&layer.out, dim_, dim_},
                               {&layer.up, dim_, ffn_},
                               {&layer.down, ffn_, dim_}};
    std::vector<Norm*> owns = {&layer.self_norm, &layer.ffn_norm};
    if (layer.reads_source) {
      parts.insert(parts.begin() + 2, {{&layer.query, dim_, dim_}, {&layer.cross_out, dim_, dim_}});
      owns.insert(owns.begin() + 1, &layer.cross_norm);
    }
    check_same("products", parts.size(), products.size());
    check_same("norms", owns.size(), norms.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const Linear& own = products[i]->linear;
      check_same("width", parts[i].in, own.in);
      check_same("width", parts[i].out, own.out);
      check(&products[i]->isa == &products[0]->isa, "products are of several instruction sets");
      *parts[i].linear = own;
    }
    for (size_t i = 0; i < owns.size(); ++i) *owns[i] = copied(norms[i]);
    isa_ = &products[0]->isa;
    reads_source_ |= layer.reads_source;
    layers_.push_back(layer);
    products_.insert(products_.end(), products.begin(), products.end());
  }

  int size() const { return int(layers_.size()); }

  // Runs x [B, n, D] through layers first .. stop - 1, to `out` [B, n or m, D].
  void run(const Floats<3>& x, const Tensor<float, 3>& out, int first, int stop,
           const std::optional<Floats<4>>& mask, const std::optional<Storage>& storage,
           const std::optional<Integers<1>>& at, const std::vector<Rows<5>>& source,
           const std::optional<Floats<4>>& source_mask, const std::optional<Floats<3>>& positions,
           const std::optional<Integers<2>>& columns, int threads) const {
    const int rows = int(x.size(0)), queries = int(x.size(1));
    check(0 <= first && first < stop && stop <= size(), "there are no such layers");
    check_same("rows", rows, out.size(0), columns ? columns->size(0) : rows);
    check_same("columns", out.size(1), columns ? columns->size(1) : queries);
    check_same("width", dim_, x.size(2), out.size(2));
    check_same("positions", x.count(), positions ? positions->count() : x.count());
    if (!out.count()) return;
    Pass pass;
    pass.rows = rows;
    pass.queries = queries;
    pass.dim = dim_;
    pass.heads = heads_;
    pass.input = x.data;
    pass.positions = data_of(positions);
    pass.mask = mask_of(mask, rows, queries, queries);
    if (storage) open_storage(*storage, at, stop, pass);
    check(pass.mask.width <= (storage ? pass.capacity : queries), "a mask is too wide");
    std::vector<SourceStates> states;
    if (reads_source_) {
      check(int64_t(source.size()) >= stop, "layers have no source");
      pass.source_mask = mask_of(source_mask, rows, 1, int(source[0].size(1)));
      for (const auto& layer : source)
        states.push_back(states_of(layer, rows, dim_, pass.source_mask));
    }
    pass.source = states.data();
    pass.columns = data_of(columns);
    pass.num_columns = int(out.size(1));
    std::vector<int64_t> asking_rows;
    for (int64_t i = 0; pass.columns && i < int64_t(rows) * pass.num_columns; ++i) {
      const int64_t column = pass.columns[i];
      check(0 <= column && column < queries, "there is no such column");
      asking_rows.push_back(i / pass.num_columns * queries + column);
    }
    pass.asking_rows = asking_rows.data();
    pass.output = out.data;
    const size_t m = size_t(rows) * queries, dim = dim_, wide = std::max(dim_, ffn_);
    const bool has_codes = std::any_of(products_.begin(), products_.end(),
                                       [](const auto& product) { return product->linear.codes; });
    const int seen = std::max(pass.mask.width, pass.source_mask.width);
    const Arena arena({m * dim, m * dim, m * dim, 3 * m * dim, m * wide}, m, has_codes ? wide : 0,
                      seen + 16, threads);
    in_team(threads, [&](int thread, int team) {
      isa_->run_layers(layers_.data(), first, stop, pass, arena.scratch, thread, team);
    });
  }

 private:
  // By the names of config.py.
  static Activation activation_of(const std::string& name) {
    if (name == "relu") return Activation::relu;
    if (name == "relu_squared") return Activation::relu_squared;
    if (name == "gelu") return Activation::gelu;
    if (name == "gelu_fast" || name == "gelu_accurate") return Activation::gelu_tanh;
    if (name == "swish") return Activation::swish;
    if (name == "tanh") return Activation::tanh;
    check(name == "linear", "there is no such activation");
    return Activation::none;
  }

  // Where a pass writes its keys and values.
  void open_storage(const Storage& storage, const std::optional<Integers<1>>& at, int stop,
                    Pass& pass) const {
    check(storage.size(0) >= stop && storage.size(1) % pass.rows == 0, "the storage is another's");
    check_same("width", 2 * dim_, storage.size(2) * storage.size(3) * storage.size(4));
    check_same("positions", int64_t(pass.rows) * pass.queries, at ? at->size(0) : 0);
    check_within(*at, 0, storage.size(1) - 1, "a position in the storage");
    pass.storage = storage.data;
    pass.layer_stride = storage.row_stride;
    pass.capacity = storage.size(1) / pass.rows;
    pass.at = at->data;
  }

  Norm copied(const NormTensors& norm) {
    const auto& [gain, bias, epsilon] = norm;
    check_same("width", dim_, gain.size(0), bias.size(0));
    const auto keep = [&](const Floats<1>& values) {
      norms_.emplace_back(values.data, values.data + dim_);
      return norms_.back().data();
    };
    const float* own_gain = keep(gain);
    return {own_gain, keep(bias), epsilon};
  }

  int dim_, heads_, ffn_;
  bool reads_source_ = false;
  const Isa* isa_ = nullptr;
  std::vector<Layer> layers_;
  std::vector<std::shared_ptr<PackedWeights>> products_;
  std::deque<std::vector<float>> norms_;
};

// The weights of a sequential head.
struct Head {
  Head(Tensor<const Bfloat16, 2> table, std::shared_ptr<PackedWeights> state,
       std::shared_ptr<PackedWeights> out, std::shared_ptr<PackedWeights> context, int heads)
      : table(std::move(table)),
        state(std::move(state)),
        out(std::move(out)),
        context(std::move(context)),
        heads(heads) {
    const int dim = this->state->linear.in, hidden = this->out->linear.in;
    check(!heads || this->context, "the head has no context");
    check_same("width", this->table.size(1), this->state->linear.out, hidden + (heads ? dim : 0));
    check_same("width", dim, this->out->linear.out, heads ? this->context->linear.in : dim);
    check_same("hidden width", hidden, heads ? this->context->linear.out : hidden);
    check(!heads || dim % heads == 0, "heads do not divide the width");
  }

  Tensor<const Bfloat16, 2> table;  // [V, H], or [V, H + D] where it reads the source
  std::shared_ptr<PackedWeights> state, out, context;
  int heads;
};

// Drafts the blocks of all rows with a sequential head (heads.py). The last of the source's keys
// and values are the head's, if it reads any. With `candidates` 0, all listed types are candidates.
inline void walk_blocks(const Floats<3>& states, const std::optional<Floats<3>>& logits,
                        const std::vector<std::shared_ptr<PackedWeights>>& lists,
                        const Integers<1>& before, const Floats<2>& embeddings, const Head& head,
                        const std::vector<Rows<5>>& source,
                        const std::optional<Floats<4>>& source_mask, int candidates,
                        const Tensor<int64_t, 2>& drafted, const Tensor<float, 2>& confidences,
                        int threads) {
  const int64_t num_types = embeddings.size(0);
  check_same("rows", states.size(0), before.size(0), drafted.size(0), confidences.size(0),
             logits ? logits->size(0) : lists.size());
  check_same("positions", states.size(1), drafted.size(1), confidences.size(1),
             logits ? logits->size(1) : states.size(1));
  check_same("types", num_types, head.table.size(0), logits ? logits->size(2) : num_types);
  check_same("width", states.size(2), embeddings.size(1), head.state->linear.in);
  check(candidates > 0 || (candidates == 0 && !logits), "there are no candidates");
  if (!drafted.count()) return;
  Walk walk;
  walk.rows = int(states.size(0));
  walk.length = int(states.size(1));
  walk.dim = int(states.size(2));
  walk.hidden = head.out->linear.in;
  walk.told = int(head.table.size(1));
  walk.heads = head.heads;
  walk.width = int(num_types);
  walk.count = std::min(candidates, walk.width);
  walk.state = head.state->linear;
  walk.out = head.out->linear;
  if (head.heads) {
    check(!source.empty(), "the head has no source");
    walk.context = head.context->linear;
    walk.source_mask = mask_of(source_mask, walk.rows, 1, int(source.back().size(1)));
    walk.source = states_of(source.back(), walk.rows, walk.dim, walk.source_mask);
  }
  walk.states = states.data;
  walk.logits = data_of(logits);
  std::vector<Linear> linears;
  std::vector<const int32_t*> listed;
  for (const auto& list : lists) {
    check_same("width", walk.dim, list->linear.in);
    check(!list->types.empty(), "no types are listed");
    check_same("types", num_types, list->num_all);
    linears.push_back(list->linear);
    listed.push_back(list->types.data());
    const int64_t scored = walk.count ? walk.length : 1;
    walk.scores_stride = std::max(walk.scores_stride, scored * linears.back().out);
  }
  walk.lists = logits ? nullptr : linears.data();
  walk.types = listed.data();
  walk.before = before.data;
  walk.embeddings = embeddings.data;
  walk.table = &head.table.data->bits;
  std::vector<int64_t> blocks;
  for (int row = 0; row < walk.rows; ++row) {
    blocks.push_back(int64_t(row) * walk.length);
    check_token(before.data[row], num_types);
  }
  walk.blocks = blocks.data();
  const size_t rows = walk.rows, places = rows * walk.length;
  std::vector<Candidate> room(places * walk.count);
  walk.candidates = room.data();
  walk.drafted = drafted.data;
  walk.confidences = confidences.data;
  const int wide = std::max(walk.dim, walk.hidden);
  const Arena arena({places * walk.told, rows * (walk.told + walk.dim), rows * walk.dim,
                     rows * walk.scores_stride, rows * walk.hidden},
                    places, walk.state.codes ? wide : 0, walk.source_mask.width + 16, threads);
  walk.scores = arena.scratch.qkv;
  const Isa& isa = head.state->isa;
  in_team(threads, [&](int thread, int team) { isa.walk(walk, arena.scratch, thread, team); });
}

}  // namespace specdec
