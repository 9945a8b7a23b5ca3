// The steps of a round around the passes over layers.

#pragma once

#include "isa.h"
#include "weights.h"

namespace specdec {

// Rows of tokens; of each row, `lengths` count, and what is behind them is junk.
struct Ragged {
  Integers<2> tokens;
  Integers<1> lengths;
};

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

// What rules and drafters compute from logits.

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
    out.data[row] = best_of(logits.data + row * width, width).token;
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
      own = best_of(logits.data + (row * columns + kept) * width, width).token;
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
    out.data[row] = active.data[row] && !best_isa().best_of(own, int(width)).finite;
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

}  // namespace specdec
