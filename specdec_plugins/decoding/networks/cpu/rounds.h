// The bookkeeping of a round. In torch each of these is a dozen operations on a few integers, whose
// call overhead exceeds their work. Their twins (ops.py, extend.py) describe the tensors.

#pragma once

#include <limits>

#include "tensor.h"

namespace specdec {

// Rows of tokens; of each row, `lengths` count, and what is behind them is junk.
struct Ragged {
  Integers<2> tokens;
  Integers<1> lengths;
};

// New positions, where they go in the storage of all rows, and the additive mask of each.
struct Opened {
  Tensor<int64_t, 2> positions;  // [B, n]
  Tensor<int64_t, 1> at;         // [B * n]
  Tensor<float, 4> mask;         // [B, 1, n, live]
};

// `skip` positions are left out after those that each row has, `lengths`; see ops.open_window.
inline void open_window(const Integers<1>& lengths, const std::optional<Integers<2>>& last_seen,
                        int skip, int64_t capacity, const Opened& out) {
  const auto& [positions, at, mask] = out;
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

// The tokens of a block drafter's pass: those that a row's cache lacks, then masks and padding; the
// last position that each may attend to; and the columns of the first masks.
struct Block {
  Tensor<int64_t, 2> tokens, last_seen;  // [B, n]
  Tensor<int64_t, 2> used;               // [B, m]
};

inline void open_block(const Ragged& prefixes, const Integers<1>& cached,
                       const Integers<1>& num_masks, int64_t mask, int64_t pad, const Block& out) {
  const auto& [prefix, lengths] = prefixes;
  const auto& [tokens, last_seen, used] = out;
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

// The embedding tables of a decoder. Positions past the table get its last row: only junk may lie
// there.
struct Tables {
  Floats<2> tokens;     // [V, D]
  float scale;          // of the tokens'
  Floats<2> positions;  // [offset + last + 1, D]
  int64_t offset, last;

  const float* place(int64_t position) const {
    return positions.data + (std::clamp<int64_t>(position, 0, last) + offset) * positions.size(1);
  }
};

// Scaled embeddings of tokens plus those of their positions.
inline void embed(const Integers<2>& tokens, const Integers<2>& positions, const Tables& tables,
                  const Tensor<float, 3>& out) {
  const int64_t dim = tables.tokens.size(1);
  check_same("tokens", tokens.count(), positions.count(), out.size(0) * out.size(1));
  check_same("width", dim, tables.positions.size(1), out.size(2));
  check(0 <= tables.offset && 0 <= tables.last &&
            tables.offset + tables.last < tables.positions.size(0),
        "positions are missing");
  for (int64_t i = 0; i < tokens.count(); ++i) {
    const int64_t token = tokens.data[i];
    check_token(token, tables.tokens.size(0));
    const float* own = tables.tokens.data + token * dim;
    const float* place = tables.place(positions.data[i]);
    for (int64_t j = 0; j < dim; ++j) out.data[i * dim + j] = own[j] * tables.scale + place[j];
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

struct Verdict {
  Integers<1> num_accepted, next_tokens;  // [B]
};

struct Prefix {
  Tensor<int64_t, 2> tokens;
  Tensor<int64_t, 1> lengths;
  Tensor<bool, 1> active;
};

// What a round appended, at most K + 1 tokens.
struct Extension {
  Tensor<int64_t, 2> tokens;  // [B, K + 1]
  Tensor<int64_t, 1> lengths, accepted;
  Tensor<bool, 1> ended, full;
};

// Appends a verdict to the prefix, cut after eos and at the longest length.
inline void extend(const Integers<2>& draft, const Verdict& verdict, const Integers<1>& max_len,
                   int64_t eos, const Prefix& prefixes, const Extension& out) {
  const auto& [num_accepted, next_tokens] = verdict;
  const auto& [prefix, prefix_lengths, active] = prefixes;
  const auto& [tokens, lengths, accepted, ended, full] = out;
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
inline void scored_tokens(const Ragged& prefixes, const Ragged& drafts, int64_t pad,
                          const Tensor<int64_t, 2>& out) {
  const auto& [prefix, lengths] = prefixes;
  const auto& [draft, num_drafted] = drafts;
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

}  // namespace specdec
