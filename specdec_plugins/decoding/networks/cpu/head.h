// A sequential head over the blocks of all rows: heads.py.

#pragma once

#include "stack.h"

namespace specdec {

// The weights of a sequential head.
struct Head {
  Head(Tensor<const Bfloat16, 2> table, std::shared_ptr<PackedWeights> state,
       std::shared_ptr<PackedWeights> out, std::shared_ptr<PackedWeights> context, int heads)
      : table(std::move(table)),
        state(std::move(state)),
        out(std::move(out)),
        context(std::move(context)),
        heads(heads) {
    const int dim = this->state->linear.in, hidden = this->out->linear.in;
    check(!heads || this->context, "the head has no context");
    check_same("width", this->table.size(1), this->state->linear.out, hidden + (heads ? dim : 0));
    check_same("width", dim, this->out->linear.out, heads ? this->context->linear.in : dim);
    check_same("hidden width", hidden, heads ? this->context->linear.out : hidden);
    check(!heads || dim % heads == 0, "heads do not divide the width");
  }

  Tensor<const Bfloat16, 2> table;  // [V, H], or [V, H + D] where it reads the source
  std::shared_ptr<PackedWeights> state, out, context;
  int heads;
};

// Where a sequential head's drafts start from.
struct Blocks {
  Floats<3> states;                 // [B, K, D]
  std::optional<Floats<3>> logits;  // [B, K, V], by which candidates are found; or, by scores,
  std::vector<std::shared_ptr<PackedWeights>> lists;  // [B] projections onto the types listed
  Integers<1> before;               // [B] the last committed tokens
  Floats<2> embeddings;             // [V, D]
};

struct Drafted {
  Tensor<int64_t, 2> tokens;     // [B, K]
  Tensor<float, 2> confidences;  // [B, K]
};

// Drafts the blocks of all rows with a sequential head (heads.py). The last of the source's keys
// and values are the head's, if it reads any. With `candidates` 0, all listed types are candidates.
inline void walk_blocks(const Blocks& blocks, const Head& head, const Source* source,
                        int candidates, const Drafted& drafted, int threads) {
  const auto& [states, logits, lists, before, embeddings] = blocks;
  const int64_t num_types = embeddings.size(0);
  check_same("rows", states.size(0), before.size(0), drafted.tokens.size(0),
             drafted.confidences.size(0), logits ? logits->size(0) : lists.size());
  check_same("positions", states.size(1), drafted.tokens.size(1), drafted.confidences.size(1),
             logits ? logits->size(1) : states.size(1));
  check_same("types", num_types, head.table.size(0), logits ? logits->size(2) : num_types);
  check_same("width", states.size(2), embeddings.size(1), head.state->linear.in);
  check(candidates > 0 || (candidates == 0 && !logits), "there are no candidates");
  if (!drafted.tokens.count()) return;
  Walk walk;
  walk.rows = int(states.size(0));
  walk.length = int(states.size(1));
  walk.dim = int(states.size(2));
  walk.hidden = head.out->linear.in;
  walk.told = int(head.table.size(1));
  walk.heads = head.heads;
  walk.width = int(num_types);
  walk.count = std::min(candidates, walk.width);
  walk.state = head.state->linear;
  walk.out = head.out->linear;
  if (head.heads) {
    check(source && !source->layers.empty(), "the head has no source");
    const Rows<5>& read = source->layers.back();
    walk.context = head.context->linear;
    walk.source_mask = mask_of(source->mask, walk.rows, 1, int(read.size(1)));
    walk.source = states_of(read, walk.rows, walk.dim, walk.source_mask);
  }
  walk.states = states.data;
  walk.logits = data_of(logits);
  std::vector<Linear> linears;
  std::vector<const int32_t*> listed;
  for (const auto& list : lists) {
    check_same("width", walk.dim, list->linear.in);
    check(!list->types.empty(), "no types are listed");
    check_same("types", num_types, list->num_all);
    linears.push_back(list->linear);
    listed.push_back(list->types.data());
    const int64_t scored = walk.count ? walk.length : 1;
    walk.scores_stride = std::max(walk.scores_stride, scored * linears.back().out);
  }
  walk.lists = logits ? nullptr : linears.data();
  walk.types = listed.data();
  walk.before = before.data;
  walk.embeddings = embeddings.data;
  walk.table = &head.table.data->bits;
  std::vector<int64_t> firsts;
  for (int row = 0; row < walk.rows; ++row) {
    firsts.push_back(int64_t(row) * walk.length);
    check_token(before.data[row], num_types);
  }
  walk.blocks = firsts.data();
  const size_t rows = walk.rows, places = rows * walk.length;
  std::vector<Candidate> room(places * walk.count);
  walk.candidates = room.data();
  walk.drafted = drafted.tokens.data;
  walk.confidences = drafted.confidences.data;
  const int wide = std::max(walk.dim, walk.hidden);
  const Arena arena({{&walk.scores, rows * walk.scores_stride},
                     {&walk.state_told, places * walk.told},
                     {&walk.sums, rows * walk.told},
                     {&walk.read, rows * walk.dim},
                     {&walk.rectified, rows * walk.hidden},
                     {&walk.corrected, rows * walk.dim}},
                    places, walk.state.codes ? wide : 0, walk.source_mask.width + 16, threads);
  const Isa& isa = head.state->isa;
  in_team(threads, [&](int thread, int team) { isa.walk(walk, arena.scratch, thread, team); });
}

}  // namespace specdec
