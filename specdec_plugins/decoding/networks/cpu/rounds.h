// The steps of a round around the passes over layers.

#pragma once

#include "isa.h"
#include "team.h"
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

// The number of tokens up to and including the first eos, or all of them.
inline int64_t up_to_eos(const int64_t* tokens, int64_t length, int64_t eos) {
  return std::min<int64_t>(std::find(tokens, tokens + length, eos) - tokens + 1, length);
}

// How a row draws its tokens: see DecodeParams.
struct Drawing {
  float temperature;
  int64_t top_k;
  float top_p;
  int64_t seed;
};

// A number in [0, 1) by seed and position, as of HashRandom in sampling.py.
enum class Stream { propose, accept, next };
inline double uniform(int64_t seed, int64_t position, Stream stream) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  const auto mix = [](uint64_t x) {
    x += kGolden;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  };
  const uint64_t count = uint64_t(position) * 3 + uint64_t(stream);
  return double(mix(mix(uint64_t(seed)) + count * kGolden) >> 11) * 0x1p-53;
}

// Probabilities after temperature, top-k and top-p: `warp` of sampling.py. The logits are finite, or
// -inf where a token is banned.
inline std::vector<float> warp(const Drawing& own, const float* logits, int width) {
  std::vector<float> probs(logits, logits + width);
  const float largest = *std::max_element(logits, logits + width) / own.temperature;
  const auto normalise = [&](double total) {
    for (float& prob : probs) prob = float(prob / total);
  };
  for (float& prob : probs) prob = std::exp(prob / own.temperature - largest);
  normalise(std::accumulate(probs.begin(), probs.end(), 0.0));
  const bool has_most = 0 < own.top_k && own.top_k < width;
  if (!has_most && own.top_p == 1) return probs;
  const auto is_behind = [&](int a, int b) {
    return probs[a] == probs[b] ? a > b : probs[a] < probs[b];
  };
  std::vector<int> heap(width);
  std::iota(heap.begin(), heap.end(), 0);
  std::make_heap(heap.begin(), heap.end(), is_behind);
  std::vector<std::pair<int, float>> best;
  double total = 0;
  while (has_most ? int64_t(best.size()) < own.top_k : total < own.top_p && !heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_behind);
    best.push_back({heap.back(), probs[heap.back()]});
    total += best.back().second;
    heap.pop_back();
  }
  const double most = own.top_p < 1 ? own.top_p * (has_most ? total : 1) : INFINITY;
  std::fill(probs.begin(), probs.end(), 0.0f);
  double before = 0;
  for (const auto& [token, prob] : best) {
    if (before >= most) break;
    probs[token] = prob;
    before += prob;
  }
  normalise(before);
  return probs;
}

// The token at a position: `drafted` (-1 = none) with its probability, else one of the others, by
// theirs. As SpeculativeSampling says of a draft that was not drawn.
inline int64_t drawn(const Drawing& own, const float* logits, int width, int64_t position,
                     int64_t drafted) {
  std::vector<float> probs = warp(own, logits, width);
  if (drafted >= 0) {
    if (uniform(own.seed, position, Stream::accept) < probs[drafted]) return drafted;
    probs[drafted] = 0;
  }
  const double total = std::accumulate(probs.begin(), probs.end(), 0.0);
  if (total == 0) return drafted;  // which has all of the probability, but for rounding
  const double point = uniform(own.seed, position, Stream::next) * total;
  double sum = 0;
  int64_t token = 0;
  while (token < width - 1 && (sum += probs[token]) <= point) ++token;
  return token;
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
