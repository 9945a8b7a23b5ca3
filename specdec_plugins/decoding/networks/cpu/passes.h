// Whole passes: a head's walk over its blocks, from committed tokens to logits, from prefixes to drafts.

#pragma once

#include "rounds.h"
#include "stack.h"

namespace specdec {

using Memory = std::shared_ptr<float>;

inline Memory memory_of(size_t count) {
  return std::static_pointer_cast<float>(scratch_memory(count * sizeof(float)));
}

// Of what rows hold from pass to pass.
inline Memory held_memory_of(size_t count) {
  return std::static_pointer_cast<float>(row_memory(count * sizeof(float)));
}

// Tokens to states: embeddings, layers, and the norms around them.
struct Reader {
  Tables tables;
  std::optional<NormTensors> first_norm, last_norm;  // of embeddings; of the last states
  std::shared_ptr<Stack> stack;

  // What the first layer reads, [M, D], of M tokens and their positions.
  void embed(const std::vector<int64_t>& tokens, const std::vector<int64_t>& positions,
             float* out) const {
    const int64_t dim = tables.tokens.size(1);
    check_same("width", dim, tables.positions.size(1));
    check(tables.offset + tables.last < tables.positions.size(0), "positions are missing");
    float* own = out;
    for (size_t i = 0; i < tokens.size(); ++i, own += dim) {
      check_token(tokens[i], tables.tokens.size(0));
      tables.tokens.copy(tokens[i], own);
      const float* place = tables.place(positions[i]);
      for (int64_t j = 0; j < dim; ++j) own[j] = own[j] * tables.scale + place[j];
    }
    normalise(first_norm, out, tokens.size());
  }

  // Last states [m, D], or those of the first layers, of the places that a plan asks for.
  void read(const Plan& plan, const std::vector<int64_t>& tokens,
            const std::vector<int64_t>& positions, int layers, float* out, int threads) const {
    thread_local Aligned<float> x;  // the system gives and clears memory of that size page by page
    x.grow(tokens.size() * stack->dim());
    embed(tokens, positions, x.data);
    stack->follow(plan, x.data, nullptr, {0, layers}, out, threads);
    if (x.size > size_t(1) << 20) x = {};
    normalise(last_norm, out, plan.asked.empty() ? tokens.size() : plan.asked.size());
  }

 private:
  void normalise(const std::optional<NormTensors>& norm, float* x, int64_t count) const {
    if (!norm) return;
    const int dim = int(tables.tokens.size(1));
    for (float* row = x; row < x + count * dim; row += dim)
      best_isa().normalise(norm->read(dim), row, dim, row);
  }
};

// The verifier.
struct Verifying {
  Reader encoder, decoder;
  std::vector<Packed> keys_values;  // of the source, for each layer
  Packed output;
};

// The weights of a sequential head.
struct Head {
  Head(Tensor<const Bfloat16, 2> table, Packed state, Packed out, Packed context, int heads)
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
  Packed state, out, context;
  int heads;
};

// Where a sequential head's drafts start from.
struct Blocks {
  Floats<3> states;                 // [B, K, D]
  std::optional<Floats<3>> logits;  // [B, K, V], by which candidates are found; or, by scores,
  std::vector<Packed> lists;        // [B] projections onto the types listed
  Integers<1> before;               // [B] the last committed tokens
  Table embeddings;                 // [V, D]
};

struct Drafted {
  Tensor<int64_t, 2> tokens;     // [B, K]
  Tensor<float, 2> confidences;  // [B, K]
};

// What a head reads of a source: its keys and values are the last, if it reads any.
inline std::vector<SourceStates> read_by(const Head& head, const Source* source, int64_t rows) {
  std::vector<SourceStates> states;
  if (!head.heads) return states;
  check(source && !source->layers.empty(), "the head has no source");
  append_states(source->layers.back(), source->mask, rows, head.state->linear.in, states);
  return states;
}

// Drafts the blocks of all rows with a sequential head (heads.py). With `candidates` 0, all listed types are candidates.
inline void walk_blocks(const Blocks& blocks, const Head& head,
                        const std::vector<SourceStates>& sources, int candidates,
                        const Drafted& drafted, int threads) {
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
    check_same("rows", walk.rows, sources.size());
    walk.context = head.context->linear;
  }
  walk.sources = sources.data();
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
  walk.embeddings = embeddings.floats.data;
  if (embeddings.packed) {
    check(&embeddings.packed->isa == &head.state->isa, "a table is of another instruction set");
    walk.packed = embeddings.packed->linear;
  }
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
  size_t row_bytes = std::max(
      {walk.state.row_bytes(), walk.out.row_bytes(), walk.context.row_bytes()});
  for (const Linear& list : linears) row_bytes = std::max(row_bytes, list.row_bytes());
  const Arena arena({{&walk.scores, rows * walk.scores_stride},
                     {&walk.state_told, places * walk.told},
                     {&walk.sums, rows * walk.told},
                     {&walk.read, rows * walk.dim},
                     {&walk.rectified, rows * walk.hidden},
                     {&walk.corrected, rows * walk.dim}},
                    places, row_bytes, widest_of(sources) + 16, threads);
  const Isa& isa = head.state->isa;
  in_team(threads, [&](int thread, int team) { isa.walk(walk, arena.scratch, thread, team); });
}

// Medusa's heads: heads.py.
struct Heads {
  const Packed blocks;  // the products of all heads, one after the other

  int64_t count() const { return blocks->linear.out / blocks->linear.in; }

  // States [B, K, D] of the first K heads, from last states [B, D].
  void read(const Floats<2>& last, const Tensor<float, 3>& out, int threads) const {
    const int64_t rows = last.size(0), used = out.size(1), dim = blocks->linear.in;
    check_same("rows", rows, out.size(0));
    check_same("width", dim, last.size(1), out.size(2));
    check(0 < used && used <= count(), "there are no such heads");
    Linear first = blocks->linear;
    first.out = int(used * dim);
    const Product product{last.data, int(rows), out.data, nullptr, nullptr, Activation::swish};
    const Arena arena({}, rows, first.row_bytes(), 0, threads);
    in_team(threads, [&](int thread, int team) {
      blocks->isa.multiply(first, product, arena.scratch, thread, team);
    });
    for (int64_t i = 0; i < out.count(); ++i)
      out.data[i] += last.data[i / (used * dim) * dim + i % dim];
  }
};

// The decoder of a block drafter.
struct BlockDrafter {
  // queries: with which each position of the table attends to what may be copied, [., D].
  BlockDrafter(Tables tables, std::shared_ptr<Stack> stack, int64_t mask,
               std::optional<Floats<2>> queries, std::shared_ptr<Head> head)
      : tables(std::move(tables)),
        stack(std::move(stack)),
        mask(mask),
        queries(std::move(queries)),
        head(std::move(head)) {
    if (!this->queries) return;
    check_same("positions", this->tables.positions.size(0), this->queries->size(0));
    check_same("width", this->tables.tokens.size(1), this->queries->size(1));
  }

  // The same of tokens [B, n], [B, n, D].
  void embed(const Integers<2>& tokens, const Integers<2>& positions, const Source& source,
             const Tensor<float, 3>& out, const Tensor<float, 3>& places) const {
    const int64_t rows = tokens.size(0), width = tokens.size(1);
    check_same("rows", rows, positions.size(0), out.size(0), places.size(0));
    check_same("columns", width, positions.size(1), out.size(1), places.size(1));
    check_same("width", tables.tokens.size(1), out.size(2), places.size(2));
    std::vector<Place> own;
    for (int64_t i = 0; i < rows * width; ++i) own.push_back({int(i / width), 0, 0, nullptr});
    embed_block(own, tokens.data, positions.data, copied_of(source, rows), out.data, places.data);
  }

  // What masks of each row may copy.
  std::vector<Attended> copied_of(const Source& source, int64_t rows) const {
    std::vector<Attended> copied;
    if (!queries) return copied;
    check(source.copied.size() == 2, "there is nothing to copy");
    const Rows<3>&keys = source.copied[0], &values = source.copied[1];
    const int64_t dim = queries->size(1);
    const Mask seen(source.mask, rows, 1, int(keys.size(1)));
    check_same("rows", rows, keys.size(0), values.size(0));
    check_same("source positions", seen.width, keys.size(1), values.size(1));
    check_same("width", dim, keys.size(2), values.size(2));
    for (int64_t row = 0; row < rows; ++row)
      copied.push_back({keys.data + row * keys.row_stride, values.data + row * values.row_stride,
                        dim, seen.of(row, 0), seen.width});
    return copied;
  }

  // Scaled embeddings, and the embeddings of the positions, [M, D]. A mask gets a mixture of the
  // source's embeddings, by the query of its position.
  void embed_block(const std::vector<Place>& rows, const int64_t* tokens, const int64_t* positions,
                   const std::vector<Attended>& copied, float* out, float* places) const {
    const int64_t dim = tables.tokens.size(1);
    int widest = 0;
    for (const Attended& own : copied) widest = std::max(widest, own.width);
    std::vector<float> scores(widest + 16);
    for (size_t i = 0; i < rows.size(); ++i, out += dim, places += dim) {
      const float* place = tables.place(positions[i]);
      check_token(tokens[i], tables.tokens.size(0));
      if (queries && tokens[i] == mask) {
        const float* query = queries->data + (place - tables.positions.data);
        const Asking asking{query, copied[rows[i].row], out};
        best_isa().attend(&asking, 1, int(dim), 1.0f, scores.data());
      } else {
        tables.tokens.copy(tokens[i], out);
      }
      for (int64_t j = 0; j < dim; ++j) out[j] *= tables.scale;
      std::copy_n(place, dim, places);
    }
  }

  const Tables tables;
  const std::shared_ptr<Stack> stack;
  const int64_t mask;
  const std::optional<Floats<2>> queries;
  const std::shared_ptr<Head> head;
};

}  // namespace specdec
