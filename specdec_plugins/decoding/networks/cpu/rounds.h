// The steps of a round around the passes over layers.

#pragma once

#include "isa.h"
#include "weights.h"

namespace specdec {

// The embedding tables of a decoder. Positions past the table get its last row: only junk may lie
// there.
struct Tables {
  Table tokens;         // [V, D]
  float scale;          // of the tokens'
  Floats<2> positions;  // [offset + last + 1, D]
  int64_t offset, last;

  const float* place(int64_t position) const {
    return positions.data + (std::clamp<int64_t>(position, 0, last) + offset) * positions.size(1);
  }
};

// The types that a sentence's own make likely and the common ones, ascending; returns how many.
inline int64_t list_types(const Integers<1>& source_ids, const Types& starts, const Types& types,
                          const Types& common, const Tensor<int32_t, 1>& out) {
  std::vector<uint8_t> listed(out.count());
  const auto mark = [&](const int32_t* first, const int32_t* stop) {
    for (; first < stop; ++first) check_token(*first, out.count()), listed[*first] = 1;
  };
  mark(common.data, common.data + common.count());
  for (int64_t i = 0; i < source_ids.count(); ++i) {
    const int64_t id = source_ids.data[i];
    check_token(id, starts.count() - 1);
    const int64_t first = starts.data[id], stop = starts.data[id + 1];
    if (first < 0 || stop > types.count()) throw std::out_of_range("a list of types is cut off");
    mark(types.data + first, types.data + stop);
  }
  int64_t count = 0;
  for (size_t type = 0; type < listed.size(); ++type)
    if (listed[type]) out.data[count++] = int32_t(type);
  return count;
}

// The number of tokens up to and including the first eos, or all of them.
inline int64_t up_to_eos(const int64_t* tokens, int64_t length, int64_t eos) {
  return std::min<int64_t>(std::find(tokens, tokens + length, eos) - tokens + 1, length);
}

// Of each row of logits what work(row, width) says.
template <typename Out, typename Work>
void each_row(const Folded<const float, 2>& logits, const Out& out, int threads, const Work& work) {
  const int width = int(logits.size(1));
  check_same("rows", logits.size(0), out.count());
  check(width > 0, "there are no types");
  for_rows(out.count(), threads,
           [&](int64_t row) { out.data[row] = work(logits.data + row * width, width); });
}

// The largest of each row, the best first, of equal ones the first.
inline void largest(const Floats<2>& logits, const Tensor<float, 2>& scores,
                    const Tensor<int64_t, 2>& tokens, int threads) {
  const int width = int(logits.size(1)), count = int(scores.size(1));
  check_same("rows", logits.size(0), scores.size(0), tokens.size(0));
  check_same("candidates", count, tokens.size(1));
  check(0 < count && count <= width, "there are fewer types than candidates");
  const auto largest_of = best_isa().largest_of;
  for_rows(logits.size(0), threads, [&](int64_t row) {
    std::vector<Candidate> found(count);
    largest_of(logits.data + row * width, width, count, found.data());
    for (int i = 0; i < count; ++i) {
      scores.data[row * count + i] = found[i].score;
      tokens.data[row * count + i] = found[i].token;
    }
  });
}

}  // namespace specdec
