// The bookkeeping of a round. In torch each of these is a dozen operations on a few integers, whose
// call overhead exceeds their work. Their twins (ops.py, extend.py) describe the tensors.

#pragma once

#include <limits>

#include "isa.h"
#include "weights.h"

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
  Table tokens;         // [V, D]
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
    float* own = out.data + i * dim;
    tables.tokens.copy(token, own);
    const float* place = tables.place(positions.data[i]);
    for (int64_t j = 0; j < dim; ++j) own[j] = own[j] * tables.scale + place[j];
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

// What rules and drafters compute from logits.

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

using Logits = Folded<const float, 2>;  // [rows, V]
template <typename T>
using EachRow = Folded<T, 1>;

inline int width_of(const Logits& logits, int64_t rows) {
  check_same("rows", logits.size(0), rows);
  check(logits.size(1) > 0, "there are no types");
  return int(logits.size(1));
}

inline void best(const Logits& logits, const EachRow<int64_t>& out, int threads) {
  const int width = width_of(logits, out.count());
  const auto best_of = best_isa().best_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    out.data[row] = best_of(logits.data + row * width, width);
  });
}

inline void log_total(const Logits& logits, const EachRow<float>& out, int threads) {
  const int width = width_of(logits, out.count());
  const auto log_total_of = best_isa().log_total_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    out.data[row] = log_total_of(logits.data + row * width, width);
  });
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

inline void rank(const Logits& logits, const EachRow<const int64_t>& tokens,
                 const EachRow<int64_t>& out, int threads) {
  const int width = width_of(logits, out.count());
  check_same("rows", out.count(), tokens.count());
  const auto rank_of = best_isa().rank_of;
  for_rows(out.count(), threads, [&](int64_t row) {
    check_token(tokens.data[row], width);
    out.data[row] = rank_of(logits.data + row * width, width, tokens.data[row]);
  });
}

// Reads the logits of a row only up to the first mismatch with its draft.
inline void leading_best(const Floats<3>& logits, const Ragged& draft,
                         const Tensor<int64_t, 1>& num_kept, const Tensor<int64_t, 1>& behind,
                         int threads) {
  const Integers<2>& drafted = draft.tokens;
  const Integers<1>& lengths = draft.lengths;
  const int64_t drafts = drafted.size(1), columns = drafts + 1;
  const int width = int(logits.size(2));
  check_same("rows", logits.size(0), drafted.size(0), lengths.size(0), num_kept.size(0),
             behind.size(0));
  check_same("columns", columns, logits.size(1));
  check(width > 0, "there are no types");
  const auto best_of = best_isa().best_of;
  for_rows(num_kept.count(), threads, [&](int64_t row) {
    const int64_t length = std::min(lengths.data[row], drafts);
    int64_t kept = 0, own = 0;
    for (;; ++kept) {
      own = best_of(logits.data + (row * columns + kept) * width, width);
      if (kept >= length || drafted.data[row * drafts + kept] != own) break;
    }
    num_kept.data[row] = kept;
    behind.data[row] = own;
  });
}

// Which active rows fail: the largest of their logits at `columns` [B] is not finite.
inline void failed(const Floats<3>& logits, const Integers<1>& columns,
                   const Tensor<const bool, 1>& active, const Tensor<bool, 1>& out) {
  const int64_t length = logits.size(1), width = logits.size(2);
  check_same("rows", logits.size(0), columns.size(0), active.size(0), out.size(0));
  check(length > 0, "there are no columns");
  for (int64_t row = 0; row < out.count(); ++row) {
    const int64_t column = std::clamp<int64_t>(columns.data[row], 0, length - 1);
    const float* own = logits.data + (row * length + column) * width;
    out.data[row] = active.data[row] && !are_numbers(own, width);
  }
}

// Of the first tokens of each row; 0 for the rest.
inline void leading_log_probs(const Floats<3>& logits, const Ragged& counted,
                              const Tensor<double, 2>& out, int threads) {
  const Integers<2>& tokens = counted.tokens;
  const Integers<1>& lengths = counted.lengths;
  const int64_t columns = logits.size(1);
  const int width = int(logits.size(2));
  check_same("rows", logits.size(0), tokens.size(0), lengths.size(0), out.size(0));
  check_same("columns", columns, tokens.size(1), out.size(1));
  const auto log_total_of = best_isa().log_total_of;
  for_rows(logits.size(0), threads, [&](int64_t row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t entry = row * columns + column;
      out.data[entry] = 0;
      if (column >= lengths.data[row]) continue;
      const float* own = logits.data + entry * width;
      check_token(tokens.data[entry], width);
      out.data[entry] = double(own[tokens.data[entry]]) - log_total_of(own, width);
    }
  });
}

// Bigram probabilities: bigrams.py.
struct Bigrams {
  Types starts;  // [V + 1]
  Types tokens;  // [pairs]
  Floats<1> log_probs, backoffs, frequencies;

  float log_prob(int64_t before, int64_t after) const {
    const int32_t start = starts.data[before], stop = starts.data[before + 1];
    if (start < 0 || start > stop || stop > tokens.size(0))
      throw std::out_of_range("bigrams are cut off");
    const int32_t *first = tokens.data + start, *last = tokens.data + stop;
    const int32_t* found = std::lower_bound(first, last, int32_t(after));
    if (found != last && *found == after) return log_probs.data[found - tokens.data];
    return backoffs.data[before] + frequencies.data[after];
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

// The best path of each row, [B, K].
inline void best_paths(const Floats<3>& logits, const Integers<1>& before, const Bigrams& bigrams,
                       float weight, int candidates, const Tensor<int64_t, 2>& paths,
                       int threads) {
  const int length = int(logits.size(1)), width = int(logits.size(2));
  check_same("rows", logits.size(0), before.size(0), paths.size(0));
  check_same("positions", length, paths.size(1));
  check_same("types", width, bigrams.starts.size(0) - 1, bigrams.backoffs.size(0),
             bigrams.frequencies.size(0));
  check_same("bigrams", bigrams.tokens.size(0), bigrams.log_probs.size(0));
  check(0 < candidates && candidates <= width, "there are no such candidates");
  for_rows(logits.size(0), threads, [&](int64_t row) {
    check_token(before.data[row], width);
    best_path(logits.data + row * length * width, length, width, before.data[row], bigrams, weight,
              candidates, best_isa(), paths.data + row * length);
  });
}

}  // namespace specdec
