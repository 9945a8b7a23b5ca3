// The bookkeeping of a round. In torch each of these is a dozen operations on a few integers, whose
// call overhead exceeds their work. Their twins (ops.py, extend.py) describe the tensors.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa.h"
#include "tensor.h"

namespace specdec {

// The new positions of each row, where they go in the storage, and their masks.
inline void open_window(const Integers<1>& lengths, const std::optional<Integers<2>>& last_seen,
                        int skip, int64_t capacity, const Tensor<int64_t, 2>& positions,
                        const Tensor<int64_t, 1>& at, const Tensor<float, 4>& mask) {
  const int64_t count = positions.size(1), live = mask.size(3);
  check_same("rows", lengths.size(0), positions.size(0), mask.size(0));
  check_same("positions", positions.count(), at.size(0), mask.size(0) * mask.size(2),
             last_seen ? last_seen->count() : at.size(0));
  for (int64_t row = 0; row < positions.size(0); ++row)
    for (int64_t column = 0; column < count; ++column) {
      const int64_t entry = row * count + column;
      const int64_t position = lengths.data[row] + skip + column;
      const int64_t seen = last_seen ? last_seen->data[entry] : position;
      const int64_t num_seen = std::clamp<int64_t>(seen + 1, 0, live);
      positions.data[entry] = position;
      at.data[entry] = row * capacity + position;
      float* own_mask = mask.data + entry * live;
      std::fill_n(own_mask, num_seen, 0.0f);
      std::fill_n(own_mask + num_seen, live - num_seen, -std::numeric_limits<float>::infinity());
    }
}

// The tokens of a pass: those that a row's cache lacks, then masks and padding; the last position
// that each may attend to; and the columns of the first masks.
inline void open_block(const Integers<2>& prefix, const Integers<1>& lengths,
                       const Integers<1>& cached, const Integers<1>& num_masks, int64_t mask,
                       int64_t pad, const Tensor<int64_t, 2>& tokens,
                       const Tensor<int64_t, 2>& last_seen, const Tensor<int64_t, 2>& used) {
  check_same("rows", prefix.size(0), lengths.size(0), cached.size(0), num_masks.size(0),
             tokens.size(0), last_seen.size(0), used.size(0));
  check_same("columns", tokens.size(1), last_seen.size(1));
  check_within(lengths, 1, prefix.size(1), "the length of a prefix");
  check_within(cached, 0, prefix.size(1), "the length of a cached prefix");
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    const int64_t* own = prefix.data + row * prefix.size(1);
    const int64_t known = lengths.data[row] - 1;  // less the start token
    const int64_t have = cached.data[row], fresh = known - have, masks = num_masks.data[row];
    for (int64_t column = 0; column < tokens.size(1); ++column) {
      const int64_t entry = row * tokens.size(1) + column;
      tokens.data[entry] = column < fresh           ? own[have + column + 1]
                           : column < fresh + masks ? mask
                                                    : pad;
      last_seen.data[entry] = column < fresh ? have + column : known + masks - 1;
    }
    for (int64_t i = 0; i < used.size(1); ++i) used.data[row * used.size(1) + i] = fresh + i;
  }
}

// Scaled embeddings of tokens plus those of their positions. Positions past the table get its last
// row: only junk may lie there.
inline void embed(const Integers<2>& tokens, const Floats<2>& table, float scale,
                  const Integers<2>& positions, const Floats<2>& position_table, int64_t offset,
                  int64_t last, const Tensor<float, 3>& out) {
  const int64_t dim = table.size(1);
  check_same("tokens", tokens.count(), positions.count(), out.size(0) * out.size(1));
  check_same("width", dim, position_table.size(1), out.size(2));
  check(0 <= offset && 0 <= last && offset + last < position_table.size(0), "positions are missing");
  for (int64_t i = 0; i < tokens.count(); ++i) {
    const int64_t token = tokens.data[i];
    check_token(token, table.size(0));
    const int64_t row = std::clamp<int64_t>(positions.data[i], 0, last) + offset;
    const float* own = table.data + token * dim;
    const float* place = position_table.data + row * dim;
    for (int64_t j = 0; j < dim; ++j) out.data[i * dim + j] = own[j] * scale + place[j];
  }
}

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

// Appends a verdict to the prefix, cut after eos and at the longest length.
inline void extend(const Integers<2>& draft, const Integers<1>& num_accepted,
                   const Integers<1>& next_tokens, const Integers<1>& max_len, int64_t eos,
                   const Tensor<int64_t, 2>& prefix, const Tensor<int64_t, 1>& prefix_lengths,
                   const Tensor<bool, 1>& active, const Tensor<int64_t, 2>& tokens,
                   const Tensor<int64_t, 1>& lengths, const Tensor<int64_t, 1>& accepted,
                   const Tensor<bool, 1>& ended, const Tensor<bool, 1>& full) {
  const int64_t rows = draft.size(0), drafted = draft.size(1), width = prefix.size(1);
  check_same("rows", rows, num_accepted.size(0), next_tokens.size(0), max_len.size(0),
             prefix.size(0), prefix_lengths.size(0), active.size(0), tokens.size(0),
             lengths.size(0), accepted.size(0), ended.size(0), full.size(0));
  check_same("columns", drafted + 1, tokens.size(1));
  for (int64_t row = 0; row < rows; ++row) {
    int64_t* own = tokens.data + row * (drafted + 1);
    std::copy_n(draft.data + row * drafted, drafted, own);
    own[drafted] = 0;
    // The engine reports a rule that counts wrongly; nothing may be written out of bounds before.
    const int64_t offered = std::clamp<int64_t>(num_accepted.data[row] + 1, 0, drafted + 1);
    if (offered > 0) own[offered - 1] = next_tokens.data[row];
    int64_t& length = prefix_lengths.data[row];
    if (length < 1 || length > width) throw std::out_of_range("a prefix has no such length");
    const bool was_active = active.data[row];
    const int64_t wanted = up_to_eos(own, offered, eos);
    const bool has_end = wanted > 0 && own[wanted - 1] == eos;
    const int64_t room = max_len.data[row] - (length - 1);
    const int64_t most = std::min(room, width - length);
    const int64_t kept = was_active ? std::max<int64_t>(std::min(wanted, most), 0) : 0;
    ended.data[row] = was_active && has_end && wanted <= room;
    full.data[row] = was_active && !ended.data[row] && kept == room;
    std::copy_n(own, kept, prefix.data + row * width + length);
    length += kept;
    active.data[row] = was_active && !ended.data[row] && !full.data[row];
    lengths.data[row] = kept;
    accepted.data[row] = std::min(num_accepted.data[row], kept);
  }
}

// The last committed token of each row and its draft, with padding in place of junk.
inline void scored_tokens(const Integers<2>& prefix, const Integers<1>& lengths,
                          const Integers<2>& draft, const Integers<1>& num_drafted, int64_t pad,
                          const Tensor<int64_t, 2>& out) {
  const int64_t width = draft.size(1);
  check_same("rows", prefix.size(0), lengths.size(0), draft.size(0), num_drafted.size(0),
             out.size(0));
  check_same("columns", width + 1, out.size(1));
  check_within(lengths, 1, prefix.size(1), "the length of a prefix");
  for (int64_t row = 0; row < lengths.count(); ++row) {
    int64_t* own = out.data + row * (width + 1);
    const int64_t count = std::clamp<int64_t>(num_drafted.data[row], 0, width);
    own[0] = prefix.data[row * prefix.size(1) + lengths.data[row] - 1];
    std::copy_n(draft.data + row * width, count, own + 1);
    std::fill_n(own + 1 + count, width - count, pad);
  }
}

// Whether the largest is finite: false if any is NaN or overflowed, or if all are minus infinity.
inline bool are_numbers(const float* x, int64_t width) {
  constexpr float kMost = std::numeric_limits<float>::max();
  int32_t overflowed = 0, finite = 0;  // as wide as a float, so that the loop vectorises
  for (int64_t i = 0; i < width; ++i) {
    overflowed |= !(x[i] <= kMost);
    finite |= x[i] >= -kMost;
  }
  return finite && !overflowed;
}

// Bigram probabilities: bigrams.py.
struct Bigrams {
  const int32_t* starts;
  const int32_t* tokens;
  int64_t count;  // of pairs
  const float* log_probs;
  const float* backoffs;
  const float* frequencies;

  float log_prob(int64_t before, int64_t after) const {
    const int32_t start = starts[before], stop = starts[before + 1];
    if (start < 0 || start > stop || stop > count) throw std::out_of_range("bigrams are cut off");
    const int32_t *first = tokens + start, *last = tokens + stop;
    const int32_t* found = std::lower_bound(first, last, int32_t(after));
    if (found != last && *found == after) return log_probs[found - tokens];
    return backoffs[before] + frequencies[after];
  }
};

// logits [K, V] of one row; `before` is its last committed token; writes K tokens to `path`.
inline void best_path(const float* logits, int length, int width, int64_t before,
                      const Bigrams& bigrams, float weight, int count, const Isa& isa,
                      int64_t* path) {
  std::vector<Candidate> candidates(size_t(length) * count);
  std::vector<int> origins(size_t(length) * count);
  std::vector<float> total(count), reached(count);
  for (int position = 0; position < length; ++position) {
    Candidate* own = &candidates[size_t(position) * count];
    isa.largest_of(logits + int64_t(position) * width, width, count, own);
    for (int to = 0; to < count; ++to) {
      if (position == 0) {
        reached[to] = own[to].score + weight * bigrams.log_prob(before, own[to].token);
        continue;
      }
      int origin = 0;
      float best = 0;
      for (int from = 0; from < count; ++from) {
        const float score =
            total[from] + weight * bigrams.log_prob((own - count)[from].token, own[to].token);
        if (from == 0 || score > best) best = score, origin = from;
      }
      origins[size_t(position) * count + to] = origin;
      reached[to] = best + own[to].score;
    }
    total.swap(reached);
  }
  int at = int(std::max_element(total.begin(), total.end()) - total.begin());
  for (int position = length - 1; position >= 0; --position) {
    path[position] = candidates[size_t(position) * count + at].token;
    at = origins[size_t(position) * count + at];
  }
}

}  // namespace specdec
