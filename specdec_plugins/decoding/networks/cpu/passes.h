// Whole passes: a head's walk over its blocks, from committed tokens to logits, from prefixes to drafts.

#pragma once

#include "rounds.h"
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
  const int wide = std::max(walk.dim, walk.hidden);
  const Arena arena({{&walk.scores, rows * walk.scores_stride},
                     {&walk.state_told, places * walk.told},
                     {&walk.sums, rows * walk.told},
                     {&walk.read, rows * walk.dim},
                     {&walk.rectified, rows * walk.hidden},
                     {&walk.corrected, rows * walk.dim}},
                    places, walk.state.codes ? wide : 0, widest_of(sources) + 16, threads);
  const Isa& isa = head.state->isa;
  in_team(threads, [&](int thread, int team) { isa.walk(walk, arena.scratch, thread, team); });
}

// The keys and values of committed tokens.
struct Cached {
  Integers<1> lengths;  // [B]
  Storage storage;
  int live;  // positions a row that a pass may use
};

// New tokens of every row: positions, masks, and where they go in the storage of all rows.
struct Window {
  Owned<int64_t, 2> positions;
  Owned<int64_t, 1> at;
  Owned<float, 4> mask;
  const Storage& storage;

  Window(int64_t rows, int64_t width, const Cached& cached,
         const std::optional<Integers<2>>& last_seen = {})
      : positions(rows, width),
        at(rows * width),
        mask(rows, int64_t(1), width, int64_t(cached.live)),
        storage(cached.storage) {
    const int64_t capacity = storage.size(1) / rows;
    check_same("rows", rows, cached.lengths.size(0));
    check_within(cached.lengths, 0, capacity, "the length of a cached prefix");
    const int64_t most = *std::max_element(cached.lengths.data, cached.lengths.data + rows);
    if (most + width > cached.live || cached.live > capacity)
      throw std::out_of_range("a pass is longer than there is room for in the cache");
    open_window(cached.lengths, last_seen, 0, capacity,
                {positions.written(), at.written(), mask.written()});
  }
  Seen seen() const { return {mask.read(), storage, at.read(), {}}; }
};

// A verifier's pass over committed and drafted tokens, up to the logits.
class Scorer {
 public:
  // norm: of the last states, if they have one.
  Scorer(Tables tables, std::shared_ptr<Stack> stack, std::shared_ptr<PackedWeights> output,
         std::optional<NormTensors> norm)
      : tables_(std::move(tables)),
        stack_(std::move(stack)),
        output_(std::move(output)),
        norm_(std::move(norm)) {}

  // The last states [B, K + 1, D], and the logits [B * (K + 1), V] of them.
  void score(const Ragged& prefix, const Ragged& draft, int64_t pad, const Cached& cached,
             const Source& source, const Tensor<float, 3>& states,
             const Folded<float, 2>& logits, int threads) const {
    const int64_t rows = prefix.lengths.count(), width = draft.tokens.size(1) + 1;
    check(rows > 0, "a pass needs rows");
    Owned<int64_t, 2> tokens(rows, width);
    scored_tokens(prefix, draft, pad, tokens.written());
    Window window(rows, width, cached);
    Owned<float, 3> x(rows, width, tables_.tokens.size(1));
    embed(tokens.read(), window.positions.read(), tables_, x.written());
    run(x, window.seen(), source, states, threads);
    output_->multiply(as_rows(states), logits, threads);
  }

  // Logits [B * n, V] after tokens [B, n] at any positions and places of their rows' storage; each
  // sees the places whose bits are set in its `seen` [B, n, W]. distances: as in `Seen`.
  void score_at(const Integers<2>& tokens, const Integers<2>& positions, const Integers<2>& places,
                const Integers<3>& seen, const std::optional<Integers<3>>& distances,
                const Storage& storage, const Source& source, const Folded<float, 2>& logits,
                int threads) const {
    const int64_t rows = tokens.size(0), width = tokens.size(1), dim = tables_.tokens.size(1);
    check(rows > 0 && width > 0, "a pass needs tokens");
    const int64_t capacity = storage.size(1) / rows, live = 64 * seen.size(2);
    check_same("rows", rows, positions.size(0), places.size(0), seen.size(0));
    check_same("columns", width, positions.size(1), places.size(1), seen.size(1));
    check(live <= capacity, "a mask is wider than the cache");
    check_within(Integers<1>{places.data, {rows * width}, 0, {}}, 0, live - 1, "a place");
    Owned<float, 4> mask(rows, int64_t(1), width, live);
    Owned<int64_t, 1> at(rows * width);
    for (int64_t i = 0; i < rows * width; ++i) {
      at.values[i] = i / width * capacity + places.data[i];
      for (int64_t place = 0; place < live; ++place) {
        const bool sees = seen.data[(i * live + place) / 64] >> place % 64 & 1;
        mask.values[i * live + place] = sees ? 0.0f : -INFINITY;
      }
    }
    Owned<float, 3> x(rows, width, dim), states(rows, width, dim);
    embed(tokens, positions, tables_, x.written());
    run(x, {mask.read(), storage, at.read(), distances}, source, states.written(), threads);
    output_->multiply(as_rows(states.written()), logits, threads);
  }

 private:
  // The last states of embedded tokens.
  void run(const Owned<float, 3>& x, const Seen& seen, const Source& source,
           const Tensor<float, 3>& states, int threads) const {
    stack_->run({x.read(), {}, {}}, seen, &source, {0, stack_->size()}, states, threads);
    if (!norm_) return;
    const Floats<2> rows = as_rows(states);
    normalise(*norm_, rows, {states.data, {rows.size(0), rows.size(1)}, 0, {}}, threads);
  }

  static Floats<2> as_rows(const Tensor<float, 3>& states) {
    return {states.data, {states.size(0) * states.size(1), states.size(2)}, 0, {}};
  }

  Tables tables_;
  std::shared_ptr<Stack> stack_;
  std::shared_ptr<PackedWeights> output_;
  std::optional<NormTensors> norm_;
};

// A block drafter with a cached prefix.
struct BlockDrafter {
  // queries: with which each position of the table attends to what may be copied, [., D].
  BlockDrafter(Tables tables, std::shared_ptr<Stack> stack, int64_t mask, int64_t pad,
               std::optional<Floats<2>> queries, std::shared_ptr<Head> head)
      : tables(std::move(tables)),
        stack(std::move(stack)),
        mask(mask),
        pad(pad),
        queries(std::move(queries)),
        head(std::move(head)) {
    if (!this->queries) return;
    check_same("positions", this->tables.positions.size(0), this->queries->size(0));
    check_same("width", this->tables.tokens.size(1), this->queries->size(1));
  }

  // States [B, m, D] of the first of `num_masks` [B] masks after each prefix. The pass covers the
  // tokens that the cache lacks, too.
  void read(const Ragged& prefix, const Cached& cached, const Integers<1>& num_masks,
            const Source& source, const Tensor<float, 3>& states, int threads) const {
    const int64_t rows = prefix.lengths.count(), dim = tables.tokens.size(1);
    const int64_t used = states.size(1);
    check(rows > 0 && used > 0, "a draft needs rows and columns");
    check_same("rows", rows, prefix.tokens.size(0), num_masks.size(0), cached.lengths.size(0));
    check_within(prefix.lengths, 1, prefix.tokens.size(1), "the length of a prefix");
    check_within(cached.lengths, 0, cached.live, "the length of a cached prefix");
    int64_t lacking = 0, masks = used;  // the most of any row
    for (int64_t row = 0; row < rows; ++row) {
      lacking = std::max(lacking, prefix.lengths.data[row] - 1 - cached.lengths.data[row]);
      masks = std::max(masks, num_masks.data[row]);
    }
    const int64_t width = lacking + masks;
    Owned<int64_t, 2> tokens(rows, width), last_seen(rows, width), columns(rows, used);
    open_block(prefix, cached.lengths, num_masks, mask, pad,
               {tokens.written(), last_seen.written(), columns.written()});
    Window window(rows, width, cached, last_seen.read());
    Owned<float, 3> x(rows, width, dim), places(rows, width, dim);
    std::vector<Place> own;
    for (int64_t i = 0; i < rows * width; ++i) own.push_back({int(i / width), 0, 0, nullptr});
    embed_block(own, tokens.values.data(), window.positions.values.data(),
                copied_of(source, rows), x.values.data(), places.values.data());
    stack->run({x.read(), places.read(), columns.read()}, window.seen(), &source,
                {0, stack->size()}, states, threads);
  }

  // Drafts among the types listed, cut at `budget` [B] and after an eos, to lengths [B]; returns the
  // longest.
  int64_t draft(const Ragged& prefix, const Cached& cached, const Integers<1>& num_masks,
                const Integers<1>& budget, int64_t eos, const Source& source,
                const std::vector<std::shared_ptr<PackedWeights>>& lists, int candidates,
                const Drafted& drafted, const Tensor<int64_t, 1>& lengths, int threads) const {
    const int64_t rows = prefix.lengths.count(), used = drafted.tokens.size(1);
    check_same("rows", rows, budget.size(0), lengths.size(0));
    Owned<float, 3> states(rows, used, tables.tokens.size(1));
    read(prefix, cached, num_masks, source, states.written(), threads);
    Owned<int64_t, 1> before(rows);
    for (int64_t row = 0; row < rows; ++row)
      before.values[row] =
          prefix.tokens.data[row * prefix.tokens.size(1) + prefix.lengths.data[row] - 1];
    check(head != nullptr, "there is no head");
    walk_blocks({states.read(), {}, lists, before.read(), tables.tokens}, *head,
                read_by(*head, &source, rows), candidates, drafted, threads);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t most = std::clamp<int64_t>(budget.data[row], 0, used);
      lengths.data[row] = up_to_eos(drafted.tokens.data + row * used, most, eos);
    }
    return *std::max_element(lengths.data, lengths.data + rows);
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
      if (queries && tokens[i] == mask)
        best_isa().attend(queries->data + (place - tables.positions.data), copied[rows[i].row],
                          int(dim), 1.0f, scores.data(), out);
      else
        tables.tokens.copy(tokens[i], out);
      for (int64_t j = 0; j < dim; ++j) out[j] *= tables.scale;
      std::copy_n(place, dim, places);
    }
  }

  const Tables tables;
  const std::shared_ptr<Stack> stack;
  const int64_t mask, pad;
  const std::optional<Floats<2>> queries;
  const std::shared_ptr<Head> head;
};

}  // namespace specdec
