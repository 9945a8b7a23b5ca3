// The bookkeeping of a round. In torch each of these is a dozen operations on a few integers, every
// one of which costs more to call than to do.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "packed.h"

namespace specdec {

// kv_cache.py, KVCache.window: where the new positions of each row lie, and what they may see.
inline void open_window(uintptr_t lengths_at, int rows, int count, int skip, int64_t capacity,
                        int64_t live, uintptr_t last_seen_at, uintptr_t positions_at,
                        uintptr_t places_at, uintptr_t mask_at) {
  const int64_t* lengths = at_address<int64_t>(lengths_at);
  const int64_t* last_seen = last_seen_at ? at_address<int64_t>(last_seen_at) : nullptr;
  int64_t* positions = reinterpret_cast<int64_t*>(positions_at);
  int64_t* places = reinterpret_cast<int64_t*>(places_at);
  float* mask = reinterpret_cast<float*>(mask_at);
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < count; ++column) {
      const int64_t entry = int64_t(row) * count + column;
      const int64_t position = lengths[row] + skip + column;
      const int64_t seen = last_seen ? last_seen[entry] : position;
      const int64_t num_seen = std::clamp<int64_t>(seen + 1, 0, live);
      positions[entry] = position;
      places[entry] = row * capacity + position;
      std::fill_n(mask + entry * live, num_seen, 0.0f);
      std::fill_n(mask + entry * live + num_seen, live - num_seen,
                  -std::numeric_limits<float>::infinity());
    }
}

// block_nat.py: the tokens of a pass over what the cache of a row lacks, masks and padding behind;
// the last position that each may attend to; and the columns of the first masks.
inline void open_block(int rows, int count, int used, uintptr_t prefix_at, int64_t prefix_width,
                       uintptr_t lengths_at, uintptr_t cached_at, uintptr_t masks_at, int64_t mask,
                       int64_t pad, uintptr_t tokens_at, uintptr_t last_seen_at,
                       uintptr_t columns_at) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t* prefix = at_address<int64_t>(prefix_at) + row * prefix_width;
    const int64_t cached = at_address<int64_t>(cached_at)[row];
    const int64_t known = at_address<int64_t>(lengths_at)[row] - 1;  // less the start token
    const int64_t fresh = known - cached, masks = at_address<int64_t>(masks_at)[row];
    for (int64_t column = 0; column < count; ++column) {
      const int64_t entry = row * count + column;
      reinterpret_cast<int64_t*>(tokens_at)[entry] =
          column < fresh ? prefix[cached + column + 1] : column < fresh + masks ? mask : pad;
      reinterpret_cast<int64_t*>(last_seen_at)[entry] =
          column < fresh ? cached + column : known + masks - 1;
    }
    for (int64_t i = 0; i < used; ++i)
      reinterpret_cast<int64_t*>(columns_at)[row * used + i] = fresh + i;
  }
}

// networks/transformer.py: scaled embeddings of tokens plus those of their positions. Positions past
// the table get its last row: only junk may lie there.
inline void embed(uintptr_t tokens_at, int64_t count, uintptr_t table_at, int64_t types, int dim,
                  float scale, uintptr_t positions_at, uintptr_t position_table_at, int64_t offset,
                  int64_t last, uintptr_t out_at) {
  const int64_t* tokens = at_address<int64_t>(tokens_at);
  const int64_t* positions = at_address<int64_t>(positions_at);
  float* out = reinterpret_cast<float*>(out_at);
  for (int64_t i = 0; i < count; ++i, out += dim) {
    if (tokens[i] < 0 || tokens[i] >= types)
      throw std::out_of_range("token " + std::to_string(tokens[i]) + " is not in the vocabulary");
    const int64_t row = std::clamp<int64_t>(positions[i], 0, last) + offset;
    const float* own = at_address<float>(table_at) + tokens[i] * dim;
    const float* place = at_address<float>(position_table_at) + row * dim;
    for (int j = 0; j < dim; ++j) out[j] = own[j] * scale + place[j];
  }
}

// rules/exact.py: a row's drafted tokens that are the best ones, and the best one behind them. No
// logits are read that nobody needs.
inline void accept_best(int row, const float* logits, int drafted, int width, const int64_t* tokens,
                        const int64_t* lengths, int64_t* accepted, int64_t* next,
                        int64_t (*best_of)(const float*, int)) {
  int64_t kept = 0, own = 0;
  for (;; ++kept) {
    own = best_of(logits + (int64_t(row) * (drafted + 1) + kept) * width, width);
    if (kept >= lengths[row] || tokens[int64_t(row) * drafted + kept] != own) break;
  }
  accepted[row] = kept;
  next[row] = own;
}

// extend.py: what a verdict appends, cut after eos and at the longest length, written to the prefix.
inline void extend_rows(int rows, int drafted, uintptr_t draft_at, uintptr_t accepted_at,
                        uintptr_t next_at, uintptr_t longest_at, int64_t eos, uintptr_t prefix_at,
                        int64_t prefix_width, uintptr_t lengths_at, uintptr_t active_at,
                        uintptr_t tokens_at, uintptr_t counts_at) {
  const int64_t* accepted = at_address<int64_t>(accepted_at);
  const int64_t* longest = at_address<int64_t>(longest_at);
  int64_t* lengths = reinterpret_cast<int64_t*>(lengths_at);
  bool* active = reinterpret_cast<bool*>(active_at);
  int64_t* counts = reinterpret_cast<int64_t*>(counts_at);  // [4, rows]
  for (int row = 0; row < rows; ++row) {
    int64_t* tokens = reinterpret_cast<int64_t*>(tokens_at) + int64_t(row) * (drafted + 1);
    std::copy_n(at_address<int64_t>(draft_at) + int64_t(row) * drafted, drafted, tokens);
    tokens[drafted] = 0;
    // A rule that counts wrongly is told by the engine; nothing may be written elsewhere meanwhile.
    const int64_t offered = std::clamp<int64_t>(accepted[row] + 1, 0, drafted + 1);
    if (offered > 0) tokens[offered - 1] = at_address<int64_t>(next_at)[row];
    const int64_t until_eos = std::find(tokens, tokens + offered, eos) - tokens;
    const int64_t wanted = std::min(until_eos + 1, offered);
    const int64_t room = longest[row] - (lengths[row] - 1);
    const int64_t most = std::min(room, prefix_width - lengths[row]);
    const int64_t kept = active[row] ? std::max<int64_t>(std::min(wanted, most), 0) : 0;
    const bool ended = active[row] && until_eos < offered && wanted <= room;
    const bool full = active[row] && !ended && kept == room;
    int64_t* prefix = reinterpret_cast<int64_t*>(prefix_at) + row * prefix_width;
    std::copy_n(tokens, kept, prefix + lengths[row]);
    lengths[row] += kept;
    active[row] = active[row] && !ended && !full;
    counts[row] = kept;
    counts[rows + row] = std::min(accepted[row], kept);
    counts[2 * rows + row] = ended;
    counts[3 * rows + row] = full;
  }
}

// engine.py: the sum of the verifier's log-probabilities of what was emitted in a row.
inline double emitted_log_prob(int row, const float* logits, int columns, int width,
                               const int64_t* tokens, const int64_t* lengths,
                               float (*log_total_of)(const float*, int)) {
  double sum = 0;
  for (int64_t column = 0; column < lengths[row]; ++column) {
    const int64_t entry = int64_t(row) * columns + column;
    const float* own = logits + entry * width;
    sum += double(own[tokens[entry]]) - log_total_of(own, width);
  }
  return sum;
}

}  // namespace specdec
