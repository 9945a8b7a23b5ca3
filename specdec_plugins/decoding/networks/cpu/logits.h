// What rules and drafters compute from logits.

#pragma once

#include "isa.h"
#include "rounds.h"

namespace specdec {

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

inline void leading_log_prob(const Floats<3>& logits, const Ragged& counted,
                             const Tensor<double, 1>& sums, int threads) {
  const Integers<2>& tokens = counted.tokens;
  const Integers<1>& lengths = counted.lengths;
  const int64_t columns = logits.size(1);
  const int width = int(logits.size(2));
  check_same("rows", logits.size(0), tokens.size(0), lengths.size(0), sums.size(0));
  check_same("columns", columns, tokens.size(1));
  const auto log_total_of = best_isa().log_total_of;
  for_rows(sums.count(), threads, [&](int64_t row) {
    double sum = 0;
    const int64_t length = std::min(lengths.data[row], columns);
    for (int64_t entry = row * columns; entry < row * columns + length; ++entry) {
      const float* own = logits.data + entry * width;
      check_token(tokens.data[entry], width);
      sum += double(own[tokens.data[entry]]) - log_total_of(own, width);
    }
    sums.data[row] = sum;
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
