// What rows hold from pass to pass: keys and values of their sources and of their texts.

#pragma once

#include "passes.h"

namespace specdec {

// Keys and values of one row's source, [layers, S, 2, H, d], with what joined beside it.
struct SourceMemory {
  Memory all;
  const float* first = nullptr;  // the row's own, of the first layer
  int64_t layer_stride = 0;
  int width = 0;

  SourceStates layer(size_t index) const {
    return {first + int64_t(index) * layer_stride, width, nullptr};
  }
};

// Of a row's own tokens, [layers, capacity, 2, H, d].
class OwnMemory {
 public:
  float* layer(int index) const { return all_.get() + index * stride(); }

  // Takes this memory for its first positions, and what is beside it for other rows.
  void open(Memory all, int64_t positions, int64_t width) {
    all_ = std::move(all);
    capacity_ = positions;
    width_ = width;
  }

  void reserve(int layers, int64_t positions, int64_t width) {
    if (positions <= capacity_) return;
    OwnMemory grown;
    grown.width_ = width;
    grown.capacity_ = std::max({positions, 2 * capacity_, int64_t(32)});
    grown.all_ = held_memory_of(layers * grown.stride());
    for (int i = 0; i < layers && capacity_; ++i) std::copy_n(layer(i), stride(), grown.layer(i));
    *this = std::move(grown);
  }

 private:
  int64_t stride() const { return capacity_ * width_; }
  Memory all_;
  int64_t capacity_ = 0, width_ = 0;
};

// States [M, D] of some sources, one after the other.
inline Memory encode(const Reader& encoder, const std::vector<const std::vector<int64_t>*>& sources,
                     int threads) {
  Plan plan;
  std::vector<int64_t> tokens, positions;
  for (const std::vector<int64_t>* source : sources) {
    plan.firsts.push_back(tokens.size());
    for (size_t at = 0; at < source->size(); ++at) {
      plan.places.push_back({plan.rows, int64_t(at), int(source->size()), nullptr});
      tokens.push_back((*source)[at]);
      positions.push_back(at);
    }
    ++plan.rows;
  }
  const Memory states = memory_of(tokens.size() * encoder.stack->dim());
  encoder.read(plan, tokens, positions, encoder.stack->size(), states.get(), threads);
  return states;
}

// Keeps, of each row, the keys and values of its source for each layer, from states [M, D].
template <typename Row>
void remember(const std::vector<Packed>& products, const float* states,
              const std::vector<const std::vector<int64_t>*>& sources, const std::vector<Row*>& rows,
              SourceMemory Row::*kept, int threads) {
  int64_t count = 0, width = 0;
  for (const std::vector<int64_t>* source : sources) count += source->size();
  for (const Packed& product : products) width = product->linear.out;
  const Memory all = held_memory_of(products.size() * count * width);
  if (!products.empty()) {
    const Arena arena({}, count, products[0]->linear.row_bytes(), 0, threads);
    in_team(threads, [&](int thread, int team) {
      float* out = all.get();
      for (const Packed& product : products) {
        product->isa.multiply(product->linear, {states, int(count), out}, arena.scratch, thread, team);
        out += count * width;
      }
    });
  }
  const float* first = all.get();
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i]->*kept = {all, first, count * width, int(sources[i]->size())};
    first += sources[i]->size() * width;
  }
}

// What the places of rows see of their sources, and of their own tokens, if these are cached.
template <typename Row>
void hold(Plan& plan, const std::vector<Row*>& rows, SourceMemory Row::*source, OwnMemory Row::*own,
          int layers) {
  plan.rows = int(rows.size());
  for (int layer = 0; layer < layers; ++layer)
    for (Row* row : rows) {
      if (own) plan.caches.push_back((row->*own).layer(layer));
      plan.sources.push_back((row->*source).layer(layer));
    }
}

}  // namespace specdec
