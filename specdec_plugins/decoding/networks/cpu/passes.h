// Whole passes: from committed tokens to logits, and from prefixes to drafts.

#pragma once

#include "head.h"
#include "rounds.h"

namespace specdec {

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
  Seen seen() const { return {mask.read(), storage, at.read()}; }
};

// A verifier's pass over committed and drafted tokens, up to the logits.
class Scorer {
 public:
  Scorer(Tables tables, std::shared_ptr<Stack> stack, std::shared_ptr<PackedWeights> output)
      : tables_(std::move(tables)), stack_(std::move(stack)), output_(std::move(output)) {}

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
    stack_->run({x.read(), {}, {}}, window.seen(), &source, {0, stack_->size()}, states, threads);
    output_->multiply(as_rows(states), logits, threads);
  }

 private:
  static Floats<2> as_rows(const Tensor<float, 3>& states) {
    return {states.data, {states.size(0) * states.size(1), states.size(2)}, 0, {}};
  }

  Tables tables_;
  std::shared_ptr<Stack> stack_;
  std::shared_ptr<PackedWeights> output_;
};

// A block drafter with a cached prefix.
class BlockDrafter {
 public:
  // queries: with which each position of the table attends to what may be copied, [., D].
  BlockDrafter(Tables tables, std::shared_ptr<Stack> stack, int64_t mask, int64_t pad,
               std::optional<Floats<2>> queries, std::shared_ptr<Head> head)
      : tables_(std::move(tables)),
        stack_(std::move(stack)),
        mask_(mask),
        pad_(pad),
        queries_(std::move(queries)),
        head_(std::move(head)) {}

  // States [B, m, D] of the first of `num_masks` [B] masks after each prefix. The pass covers the
  // tokens that the cache lacks, too.
  void read(const Ragged& prefix, const Cached& cached, const Integers<1>& num_masks,
            const Source& source, const Tensor<float, 3>& states, int threads) const {
    const int64_t rows = prefix.lengths.count(), dim = tables_.tokens.size(1);
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
    open_block(prefix, cached.lengths, num_masks, mask_, pad_,
               {tokens.written(), last_seen.written(), columns.written()});
    Window window(rows, width, cached, last_seen.read());
    Owned<float, 3> x(rows, width, dim), places(rows, width, dim);
    embed_block(tokens.read(), window.positions.read(), source, x.written(), places.written());
    stack_->run({x.read(), places.read(), columns.read()}, window.seen(), &source,
                {0, stack_->size()}, states, threads);
  }

  // Drafts among the types listed, cut at `budget` [B] and after an eos, to lengths [B]; returns the
  // longest.
  int64_t draft(const Ragged& prefix, const Cached& cached, const Integers<1>& num_masks,
                const Integers<1>& budget, int64_t eos, const Source& source,
                const std::vector<std::shared_ptr<PackedWeights>>& lists, int candidates,
                const Drafted& drafted, const Tensor<int64_t, 1>& lengths, int threads) const {
    const int64_t rows = prefix.lengths.count(), used = drafted.tokens.size(1);
    check_same("rows", rows, budget.size(0), lengths.size(0));
    Owned<float, 3> states(rows, used, tables_.tokens.size(1));
    read(prefix, cached, num_masks, source, states.written(), threads);
    Owned<int64_t, 1> before(rows);
    for (int64_t row = 0; row < rows; ++row)
      before.values[row] =
          prefix.tokens.data[row * prefix.tokens.size(1) + prefix.lengths.data[row] - 1];
    check(head_ != nullptr, "there is no head");
    walk_blocks({states.read(), {}, lists, before.read(), tables_.tokens}, *head_, &source,
                candidates, drafted, threads);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t most = std::clamp<int64_t>(budget.data[row], 0, used);
      lengths.data[row] = up_to_eos(drafted.tokens.data + row * used, most, eos);
    }
    return *std::max_element(lengths.data, lengths.data + rows);
  }

 private:
  // Scaled embeddings, and the embeddings of the positions. A mask gets a mixture of the source's
  // embeddings, by the query of its position.
  void embed_block(const Integers<2>& tokens, const Integers<2>& positions, const Source& source,
                   const Tensor<float, 3>& out, const Tensor<float, 3>& places) const {
    const int64_t dim = tables_.tokens.size(1), width = tokens.size(1), rows = tokens.size(0);
    Mask seen;
    if (queries_) {
      check(source.copied.size() == 2, "there is nothing to copy");
      const Rows<3>&keys = source.copied[0], &values = source.copied[1];
      seen = mask_of(source.mask, rows, 1, int(keys.size(1)));
      check_same("positions", tables_.positions.size(0), queries_->size(0));
      check_same("rows", rows, keys.size(0), values.size(0));
      check_same("source positions", seen.width, keys.size(1), values.size(1));
      check_same("width", dim, queries_->size(1), keys.size(2), values.size(2));
    }
    std::vector<float> scores(seen.width + 16);
    for (int64_t i = 0; i < tokens.count(); ++i) {
      const int64_t row = i / width, token = tokens.data[i];
      const float* place = tables_.place(positions.data[i]);
      float* own = out.data + i * dim;
      check_token(token, tables_.tokens.size(0));
      if (queries_ && token == mask_) {
        const Rows<3>&keys = source.copied[0], &values = source.copied[1];
        const Attended attended{keys.data + row * keys.row_stride,
                                values.data + row * values.row_stride, dim,
                                seen.data ? seen.data + row * seen.row_stride : nullptr,
                                seen.width};
        best_isa().attend(queries_->data + (place - tables_.positions.data), attended, int(dim),
                          1.0f, scores.data(), own);
      } else {
        std::copy_n(tables_.tokens.data + token * dim, dim, own);
      }
      for (int64_t j = 0; j < dim; ++j) own[j] *= tables_.scale;
      std::copy_n(place, dim, places.data + i * dim);
    }
  }

  Tables tables_;
  std::shared_ptr<Stack> stack_;
  int64_t mask_, pad_;
  std::optional<Floats<2>> queries_;
  std::shared_ptr<Head> head_;
};

}  // namespace specdec
