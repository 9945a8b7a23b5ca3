// The layers of an encoder or a decoder, and what a pass over them reads.

#pragma once

#include <deque>

#include "weights.h"

namespace specdec {

struct NormTensors {
  Floats<1> gain;
  std::optional<Floats<1>> bias;  // none = RMS, which leaves the mean as it is
  float epsilon;

  Norm read(int64_t dim) const {
    check_same("width", dim, gain.size(0), bias ? bias->size(0) : dim);
    return {gain.data, data_of(bias), epsilon};
  }
};

// The switches of a layer.
struct Switches {
  bool norm_before, gated, scales_scores;
  std::string activation;                // by the names of config.py
  std::optional<Floats<2>> by_distance;  // [H, 2 * reach + 1], added to scores; none = nothing
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
  std::optional<Integers<3>> distances;  // [B or 1, n, T], if relative; none = as in `Place`
};

struct Span {
  int first, stop;  // layers
};

// Norms of rows, which may be written where they are read.
inline void normalise(const NormTensors& norm, const Folded<const float, 2>& x,
                      const Folded<float, 2>& out, int threads) {
  const int64_t rows = x.size(0), dim = x.size(1);
  const Norm own = norm.read(dim);
  check_same("numbers", x.count(), out.count());
  for_rows(rows, threads, [&](int64_t row) {
    best_isa().normalise(own, x.data + row * dim, int(dim), out.data + row * dim);
  });
}

// New positions of some rows, and what these rows hold.
struct Plan {
  int rows = 0;
  std::vector<Place> places;          // [M]
  std::vector<float*> caches;         // [layers, B], or none
  std::vector<int64_t> firsts;        // [B], where there are no caches
  std::vector<SourceStates> sources;  // [layers, B], or none
  std::vector<int64_t> asked;         // whose output is wanted; none = all
};

// An additive mask [rows or 1, 1, queries or 1, width]; without one, all of `width` is seen.
struct Mask {
  const float* data;
  int64_t row_stride, query_stride;
  int width;

  Mask(const std::optional<Floats<4>>& mask, int64_t rows, int64_t asking, int width)
      : data(data_of(mask)), row_stride(0), query_stride(0), width(width) {
    if (!mask) return;
    const int64_t queries = mask->size(2), seen = mask->size(3);
    check((mask->size(0) == 1 || mask->size(0) == rows) && mask->size(1) == 1 &&
              (queries == 1 || queries == asking),
          "a mask has other rows or queries");
    if (mask->size(0) > 1) row_stride = queries * seen;
    if (queries > 1) query_stride = seen;
    this->width = int(seen);
  }
  const float* of(int64_t row, int64_t query) const {
    return data ? data + row * row_stride + query * query_stride : nullptr;
  }
};

// Of each row, keys and values of one layer's source, [B, S, 2, H, d].
inline void append_states(const Rows<5>& source, const std::optional<Floats<4>>& own, int64_t rows,
                          int dim, std::vector<SourceStates>& states) {
  const Mask mask(own, rows, 1, int(source.size(1)));
  check_same("rows", rows, source.size(0));
  check_same("source positions", mask.width, source.size(1));
  check_same("width", 2 * dim, source.size(2) * source.size(3) * source.size(4));
  for (int64_t row = 0; row < rows; ++row)
    states.push_back({source.data + row * source.row_stride, mask.width, mask.of(row, 0)});
}

inline int widest_of(const std::vector<SourceStates>& states) {
  int widest = 0;
  for (const SourceStates& own : states) widest = std::max(widest, own.width);
  return widest;
}

// The layers of an encoder or a decoder.
class Stack {
 public:
  // attention: the width of all heads together.
  Stack(int dim, int attention, int heads, int ffn)
      : dim_(dim), attention_(attention), heads_(heads), ffn_(ffn) {
    check(dim > 0 && heads > 0 && ffn > 0 && attention > 0 && attention % heads == 0,
          "no such layers");
  }

  void add(const std::vector<Packed>& products, const std::vector<NormTensors>& norms,
           const Switches& switches) {
    Layer layer;
    layer.reads_source = products.size() == 6;
    layer.norm_before = switches.norm_before;
    layer.gated = switches.gated;
    layer.scale = switches.scales_scores ? 1.0f / std::sqrt(float(attention_ / heads_)) : 1.0f;
    layer.activation = activation_of(switches.activation);
    if (switches.by_distance) {
      const Floats<2>& added = *switches.by_distance;
      check_same("heads", heads_, added.size(0));
      check(added.size(1) % 2 == 1, "distances are not symmetric");
      layer.relative = {kept(added), added.size(1) / 2};
    }
    struct Part {
      Linear* linear;
      int in, out;
    };
    std::vector<Part> parts = {{&layer.qkv, dim_, 3 * attention_},
                               {&layer.out, attention_, dim_},
                               {&layer.up, dim_, layer.gated ? 2 * ffn_ : ffn_},
                               {&layer.down, ffn_, dim_}};
    std::vector<Norm*> owns = {&layer.self_norm, &layer.ffn_norm};
    if (layer.reads_source) {
      parts.insert(parts.begin() + 2, {{&layer.query, dim_, attention_},
                                       {&layer.cross_out, attention_, dim_}});
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
    for (size_t i = 0; i < owns.size(); ++i) {
      const Norm own = norms[i].read(dim_);
      const float* bias = own.bias ? kept(*norms[i].bias) : nullptr;
      *owns[i] = {kept(norms[i].gain), bias, own.epsilon};
    }
    isa_ = &products[0]->isa;
    reads_source_ |= layer.reads_source;
    is_gated_ |= layer.gated;
    is_relative_ |= layer.relative.data != nullptr;
    layers_.push_back(layer);
    products_.insert(products_.end(), products.begin(), products.end());
  }

  int size() const { return int(layers_.size()); }

  int dim() const { return dim_; }

  int cached() const { return 2 * attention_; }  // numbers of a position in a cache, of a layer

  bool is_relative() const { return is_relative_; }

  // Runs layers first .. stop - 1, to `out` [B, n or m, D].
  void run(const Inputs& inputs, const Seen& seen, const Source* source, Span span,
           const Tensor<float, 3>& out, int threads) const {
    const auto& [x, positions, columns] = inputs;
    const int64_t rows = x.size(0), queries = x.size(1);
    check(0 <= span.first && span.first < span.stop && span.stop <= size(),
          "there are no such layers");
    check_same("rows", rows, out.size(0), columns ? columns->size(0) : rows);
    check_same("columns", out.size(1), columns ? columns->size(1) : queries);
    check_same("width", dim_, x.size(2), out.size(2));
    check_same("positions", x.count(), positions ? positions->count() : x.count());
    if (!out.count()) return;
    Plan plan;
    plan.rows = int(rows);
    const Mask mask(seen.mask, rows, queries, int(queries));
    const int64_t capacity = seen.storage ? open_storage(seen, rows, queries, span.stop, plan) : 0;
    check(mask.width <= (seen.storage ? capacity : queries), "a mask is too wide");
    const int64_t* distances = data_of(seen.distances);
    const bool is_shared = distances && seen.distances->size(0) == 1;  // by all rows
    if (distances) {
      check_same("distances", is_shared ? 1 : rows, seen.distances->size(0));
      check_same("distances", queries, seen.distances->size(1));
      check_same("distances", mask.width, seen.distances->size(2));
    }
    for (int64_t i = 0; i < rows * queries; ++i) {
      const int64_t row = i / queries, at = capacity ? seen.at->data[i] - row * capacity : 0;
      const int64_t told = is_shared ? i % queries : i;
      const int64_t* own = distances ? distances + told * mask.width : nullptr;
      plan.places.push_back({int(row), at, mask.width, mask.of(row, i % queries), own});
    }
    for (int64_t row = 0; row < rows; ++row) plan.firsts.push_back(row * queries);
    if (reads_source_) {
      check(source && int64_t(source->layers.size()) >= span.stop, "layers have no source");
      for (const auto& layer : source->layers)
        append_states(layer, source->mask, rows, attention_, plan.sources);
    }
    for (int64_t i = 0; columns && i < columns->count(); ++i) {
      check(0 <= columns->data[i] && columns->data[i] < queries, "there is no such column");
      plan.asked.push_back(i / out.size(1) * queries + columns->data[i]);
    }
    follow(plan, x.data, data_of(positions), span, out.data, threads);
  }

  // The same over a plan, which is not checked: x [M, D], to `out` [m, D].
  void follow(const Plan& plan, const float* x, const float* positions, Span span, float* out,
              int threads) const {
    Pass pass;
    pass.rows = plan.rows;
    pass.count = int(plan.places.size());
    pass.dim = dim_;
    pass.width = attention_;
    pass.ffn = ffn_;
    pass.heads = heads_;
    pass.input = x;
    pass.positions = positions;
    pass.places = plan.places.data();
    pass.caches = plan.caches.empty() ? nullptr : plan.caches.data();
    pass.firsts = plan.firsts.data();
    pass.sources = plan.sources.data();
    pass.asked = plan.asked.empty() ? nullptr : plan.asked.data();
    pass.num_asked = pass.asked ? int(plan.asked.size()) : pass.count;
    pass.output = out;
    int seen = widest_of(plan.sources);
    for (const Place& place : plan.places) seen = std::max(seen, place.width);
    // A position may be asked for more than once.
    const size_t m = std::max(pass.count, pass.num_asked);
    const size_t dim = dim_, attention = attention_, ffn = ffn_;
    const size_t up = is_gated_ ? 2 * ffn : ffn;
    size_t row_bytes = 0;
    for (const auto& product : products_)
      row_bytes = std::max(row_bytes, product->linear.row_bytes());
    const Arena arena({{&pass.x, m * dim},
                       {&pass.normed, m * dim},
                       {&pass.branch, m * std::max(dim, attention)},
                       {&pass.qkv, 3 * m * attention},
                       {&pass.hidden, m * std::max(dim, up)},
                       {&pass.gated, is_gated_ ? m * ffn : 0}},
                      m, row_bytes, QUERIES_MOST * (seen + 16) * (is_relative_ ? 2 : 1),
                      threads);
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

  // Where a pass writes its keys and values; returns the positions of a row.
  int64_t open_storage(const Seen& seen, int64_t rows, int64_t queries, int stop,
                       Plan& plan) const {
    const Storage& storage = *seen.storage;
    check(storage.size(0) >= stop && storage.size(1) % rows == 0, "the storage is another's");
    check_same("width", 2 * attention_, storage.size(2) * storage.size(3) * storage.size(4));
    check_same("positions", rows * queries, seen.at ? seen.at->size(0) : 0);
    const int64_t capacity = storage.size(1) / rows;
    for (int64_t i = 0; i < rows * queries; ++i)
      check(seen.at->data[i] / capacity == i / queries && seen.at->data[i] >= 0,
            "a position in the storage is out of range");
    for (int layer = 0; layer < stop; ++layer)
      for (int64_t row = 0; row < rows; ++row)
        plan.caches.push_back(storage.data + layer * storage.row_stride +
                              row * capacity * 2 * attention_);
    return capacity;
  }

  template <int rank>
  const float* kept(const Floats<rank>& values) {
    kept_.emplace_back(values.data, values.data + values.count());
    return kept_.back().data();
  }

  int dim_, attention_, heads_, ffn_;
  bool reads_source_ = false, is_gated_ = false, is_relative_ = false;
  const Isa* isa_ = nullptr;
  std::vector<Layer> layers_;
  std::vector<Packed> products_;
  std::deque<std::vector<float>> kept_;  // norms, and what is added by distance
};

}  // namespace specdec
