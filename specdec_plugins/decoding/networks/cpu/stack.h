// The layers of an encoder or a decoder, run in one call.

#pragma once

#include <deque>
#include <memory>
#include <tuple>
#include <utility>

#include "packed.h"

namespace specdec {

using NormAt = std::tuple<uintptr_t, uintptr_t, float>;  // gain, bias, epsilon
using MaskAt = std::tuple<uintptr_t, int64_t, int64_t, int>;  // address or 0, strides, width

inline Mask mask_at(const MaskAt& where) {
  const auto [data, row_stride, query_stride, width] = where;
  return {at_address<float>(data), row_stride, query_stride, width};
}

// The layers of an encoder or a decoder.
class Stack {
 public:
  Stack(int dim, int heads, int ffn) : dim_(dim), heads_(heads), ffn_(ffn) {}

  void add(std::vector<std::shared_ptr<PackedWeights>> products, const std::vector<NormAt>& norms,
           bool norm_before, const std::string& activation) {
    Layer layer;
    layer.reads_source = products.size() == 6;
    layer.norm_before = norm_before;
    layer.activation = activation == "relu"   ? Activation::relu
                       : activation == "gelu" ? Activation::gelu
                                              : Activation::none;
    std::vector<Linear*> linears = {&layer.qkv, &layer.out, &layer.up, &layer.down};
    std::vector<Norm*> owns = {&layer.self_norm, &layer.ffn_norm};
    if (layer.reads_source) {
      linears.insert(linears.begin() + 2, {&layer.query, &layer.cross_out});
      owns.insert(owns.begin() + 1, &layer.cross_norm);
    }
    for (size_t i = 0; i < linears.size(); ++i) *linears[i] = products.at(i)->linear;
    for (size_t i = 0; i < owns.size(); ++i) *owns[i] = copied(norms.at(i));
    isa_ = &products[0]->isa;
    layers_.push_back(layer);
    products_.insert(products_.end(), products.begin(), products.end());
  }

  // [B, n, D] at `input` through layers first .. stop - 1, to `output`.
  void run(int first, int stop, int rows, int queries, uintptr_t input, uintptr_t positions,
           const MaskAt& mask, uintptr_t storage, int64_t layer_stride, int64_t capacity,
           uintptr_t at, const std::vector<std::pair<uintptr_t, int64_t>>& source,
           const MaskAt& source_mask, uintptr_t columns, int num_columns, uintptr_t output,
           int threads) const {
    Pass pass;
    pass.rows = rows;
    pass.queries = queries;
    pass.dim = dim_;
    pass.heads = heads_;
    pass.input = at_address<float>(input);
    pass.positions = at_address<float>(positions);
    pass.mask = mask_at(mask);
    pass.storage = reinterpret_cast<float*>(storage);
    pass.layer_stride = layer_stride;
    pass.capacity = capacity;
    pass.at = at_address<int64_t>(at);
    std::vector<SourceStates> states;
    for (const auto& [address, stride] : source)
      states.push_back({at_address<float>(address), stride});
    pass.source = states.data();
    pass.source_mask = mask_at(source_mask);
    pass.columns = at_address<int64_t>(columns);
    pass.num_columns = num_columns;
    std::vector<int64_t> asking_rows;
    for (int64_t i = 0; pass.columns && i < int64_t(rows) * num_columns; ++i)
      asking_rows.push_back(i / num_columns * queries + pass.columns[i]);
    pass.asking_rows = asking_rows.data();
    pass.output = reinterpret_cast<float*>(output);
    const size_t m = size_t(rows) * queries, dim = dim_, wide = std::max(dim_, ffn_);
    const bool has_codes = std::any_of(products_.begin(), products_.end(),
                                       [](const auto& product) { return product->linear.codes; });
    const int seen = std::max(pass.mask.width, pass.source_mask.width);
    const Scratch scratch = scratch_for({m * dim, m * dim, m * dim, 3 * m * dim, m * wide},
                                        has_codes ? m * (wide + 3) : 0, m, seen + 16, threads);
    in_team(threads, [&](int thread, int team) {
      isa_->run_layers(layers_.data(), first, stop, pass, scratch, thread, team);
    });
  }

 private:
  Norm copied(const NormAt& where) {
    const auto [gain, bias, epsilon] = where;
    const auto keep = [&](uintptr_t address) {
      norms_.emplace_back(at_address<float>(address), at_address<float>(address) + dim_);
      return norms_.back().data();
    };
    const float* own_gain = keep(gain);
    return {own_gain, keep(bias), epsilon};
  }

  int dim_, heads_, ffn_;
  const Isa* isa_ = nullptr;
  std::vector<Layer> layers_;
  std::vector<std::shared_ptr<PackedWeights>> products_;
  std::deque<std::vector<float>> norms_;
};

}  // namespace specdec
