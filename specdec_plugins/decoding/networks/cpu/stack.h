// The layers of an encoder or a decoder, and what a pass over them reads.

#pragma once

#include <deque>

#include "weights.h"

namespace specdec {

struct NormTensors {
  Floats<1> gain, bias;
  float epsilon;
};

// What is computed once for the sources of all rows.
struct Source {
  std::vector<Rows<5>> layers;         // keys and values, [B, S, 2, H, d] each; a head's are the last
  std::optional<Floats<4>> mask;       // [B or 1, 1, 1, S], additive
  std::vector<Rows<3>> copied;         // keys and values [B, S, D] of what a block drafter may copy
};

// What a pass reads, [B, n, D].
struct Inputs {
  Floats<3> x;
  std::optional<Floats<3>> positions;  // [B, n, D], added to what each layer reads
  std::optional<Integers<2>> columns;  // [B, m] whose output is wanted; none = all
};

// What the positions of a pass see of each other and of the cache, and where in it they go.
struct Seen {
  std::optional<Floats<4>> mask;       // [B or 1, 1, n or 1, T], additive
  std::optional<Storage> storage;
  std::optional<Integers<1>> at;       // [B * n]
};

struct Span {
  int first, stop;  // layers
};

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

  // Runs layers first .. stop - 1, to `out` [B, n or m, D].
  void run(const Inputs& inputs, const Seen& seen, const Source* source, Span span,
           const Tensor<float, 3>& out, int threads) const {
    const auto& [x, positions, columns] = inputs;
    const int rows = int(x.size(0)), queries = int(x.size(1));
    check(0 <= span.first && span.first < span.stop && span.stop <= size(),
          "there are no such layers");
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
    pass.mask = mask_of(seen.mask, rows, queries, queries);
    if (seen.storage) open_storage(*seen.storage, seen.at, span.stop, pass);
    check(pass.mask.width <= (seen.storage ? pass.capacity : queries), "a mask is too wide");
    std::vector<SourceStates> states;
    if (reads_source_) {
      check(source && int64_t(source->layers.size()) >= span.stop, "layers have no source");
      pass.source_mask = mask_of(source->mask, rows, 1, int(source->layers[0].size(1)));
      for (const auto& layer : source->layers)
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
    const Arena arena({{&pass.x, m * dim},
                       {&pass.normed, m * dim},
                       {&pass.branch, m * dim},
                       {&pass.qkv, 3 * m * dim},
                       {&pass.hidden, m * wide}},
                      m, has_codes ? wide : 0,
                      std::max(pass.mask.width, pass.source_mask.width) + 16, threads);
    in_team(threads, [&](int thread, int team) {
      isa_->run_layers(layers_.data(), span.first, span.stop, pass, arena.scratch, thread, team);
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

}  // namespace specdec
