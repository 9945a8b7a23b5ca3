// bigrams.py: the best path through the best tokens of each position of a block.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace specdec {

struct Bigrams {
  const int32_t* starts;
  const int32_t* tokens;
  const float* log_probs;
  const float* backoffs;
  const float* frequencies;

  float log_prob(int64_t before, int64_t after) const {
    const int32_t *first = tokens + starts[before], *last = tokens + starts[before + 1];
    const int32_t* found = std::lower_bound(first, last, int32_t(after));
    if (found != last && *found == after) return log_probs[found - tokens];
    return backoffs[before] + frequencies[after];
  }
};

struct Candidate {
  float score;
  int64_t token;
};

// The `count` largest, the best first. Most stretches hold none and are passed over at once.
inline void largest_of(const float* x, int width, int count, Candidate* found) {
  constexpr int kStretch = 32;
  int have = 0;
  const auto consider = [&](int64_t token) {
    if (have == count && !(x[token] > found[count - 1].score)) return;
    int at = have < count ? have++ : count - 1;
    for (; at > 0 && x[token] > found[at - 1].score; --at) found[at] = found[at - 1];
    found[at] = {x[token], token};
  };
  int i = 0;
  for (; i < width && have < count; ++i) consider(i);
  for (; i + kStretch <= width; i += kStretch) {
    float lanes[4] = {x[i], x[i + 1], x[i + 2], x[i + 3]};
    for (int j = 4; j < kStretch; j += 4)
      for (int lane = 0; lane < 4; ++lane)
        lanes[lane] = x[i + j + lane] > lanes[lane] ? x[i + j + lane] : lanes[lane];
    const float top = std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3]));
    if (top > found[count - 1].score)
      for (int j = 0; j < kStretch; ++j) consider(i + j);
  }
  for (; i < width; ++i) consider(i);
}

// logits [K, V] of one row; `before` is its last committed token; K tokens to `path`.
inline void best_path(const float* logits, int length, int width, int64_t before,
                      const Bigrams& bigrams, float weight, int count, int64_t* path) {
  std::vector<Candidate> candidates(size_t(length) * count);
  std::vector<int> origins(size_t(length) * count);
  std::vector<float> total(count), reached(count);
  for (int position = 0; position < length; ++position) {
    Candidate* own = &candidates[size_t(position) * count];
    largest_of(logits + int64_t(position) * width, width, count, own);
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
