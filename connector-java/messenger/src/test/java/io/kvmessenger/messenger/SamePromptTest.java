package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Requests that use one transfer id at the same moment, for one prompt. */
class SamePromptTest extends SameIdPair {
    @ParameterizedTest
    @ValueSource(strings = {"ffpp", "ppff", "fpfp", "pfpf", "fppf", "pffp"})
    void shouldServeEachRequestOfOnePrompt(String order) {
        int fetches = 0;
        int prefills = 0;
        for (int side : order.chars().toArray()) {
            if (side == 'f') {
                fetches++;
                fetch("d" + fetches, FIRST, 2 * fetches - 1);
            } else {
                prefills++;
                compute("p" + prefills, FIRST, prefills == 1 ? FIRST_PAGES : SECOND_PAGES);
                finish("p" + prefills);
            }
        }
        completeAllWrites();

        assertThat(pagesSent()).hasSize(4).allMatch(page -> page.matches("[56]>[1-4]|[72]>[1-4]"));
        assertThat(pagesSent().stream().map(page -> page.substring(2))).containsExactlyInAnyOrder("1", "2", "3", "4");
        assertThat(decoder.reported).isEmpty();
        assertThat(prefiller.reported).containsExactlyInAnyOrder("released p1", "released p2");
    }

    @Test
    void shouldKeepOnePrefillForEachRequestThatIsExpected() {
        decoder.cache.onCommand(new EngineCommand.Expect(FIRST, PREFILLER));
        decoder.cache.onCommand(new EngineCommand.Expect(FIRST, PREFILLER));
        carry();
        compute("p1", FIRST, FIRST_PAGES);
        compute("p2", FIRST, SECOND_PAGES);
        finish("p1");
        finish("p2");
        fetch("d1", FIRST, 1);
        completeAllWrites();
        pass(3 * LIMITS.grantWaitNs());
        assertThat(prefiller.reported).containsExactly("released p1");
        decoder.cache.onCommand(new EngineCommand.Decline(FIRST, PREFILLER));
        carry();

        assertThat(prefiller.reported).containsExactly("released p1", "released p2");
    }

    @Test
    void shouldTakeADeclineForTheRequestThatHasNotBegun() {
        compute("p1", FIRST, FIRST_PAGES);
        finish("p1");
        fetch("d1", FIRST, 1);
        decoder.cache.onCommand(new EngineCommand.Decline(FIRST, PREFILLER));
        carry();
        compute("p2", FIRST, SECOND_PAGES);
        finish("p2");
        assertThat(prefiller.reported).as("the first is still being written").containsExactly("released p2");
        completeAllWrites();

        assertThat(prefiller.reported).containsExactly("released p2", "released p1");
    }

    @Test
    void shouldNotDismissAPrefillByTheLateCancelOfAnother() {
        compute("p1", FIRST, FIRST_PAGES);
        fetch("d1", FIRST, 1);
        finish("p1");
        completeAllWrites();
        compute("p2", FIRST, SECOND_PAGES);
        finish("p2");
        decoder.cache.onCommand(new EngineCommand.Abandon("d1")); // all has left, and not arrived yet
        carry();
        assertThat(decoder.reported).containsExactly("failed d1");
        assertThat(prefiller.reported).containsExactly("released p1");
        fetch("d2", FIRST, 3);
        completeAllWrites();

        assertThat(prefiller.reported).containsExactly("released p1", "released p2");
        assertThat(pagesSent()).contains("7>3", "2>4");
    }

    @Test
    void shouldServeBothWhenOneIsPreempted() {
        announce("p1", FIRST);
        announce("p2", FIRST);
        fetch("d1", FIRST, 1);
        compute("p1", FIRST, FIRST_PAGES);
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("p1"), new CompletableFuture<>()));
        completeAllWrites();
        fetch("d2", FIRST, 3);
        compute("p2", FIRST, SECOND_PAGES);
        compute("p1", FIRST, FIRST_PAGES);
        finish("p2");
        finish("p1");
        completeAllWrites();

        assertThat(decoder.reported).as("all of it had been posted, and landed").containsExactly("arrived d1");
        assertThat(prefiller.reported).as("either serves the second").contains("released p1", "released p2");
        assertThat(pagesSent().stream().map(page -> page.substring(2))).contains("1", "2", "3", "4");
        assertThat(prefiller.cache.held().prefills()).isZero();
    }

    @Test
    void shouldEnqueueOnePromptForEachRequestThatBringsIt() {
        EngineCommand.Prompt prompt = new EngineCommand.Prompt(new int[] {1}, "", 0);
        fetch("d1", FIRST, 1, prompt);
        fetch("d2", FIRST, 3, prompt);

        assertThat(prefiller.enqueued).containsExactly(ID, ID);
        compute("p1", FIRST, FIRST_PAGES);
        compute("p2", FIRST, SECOND_PAGES);
        finish("p1");
        finish("p2");
        completeAllWrites();
        assertThat(prefiller.reported).containsExactly("released p1", "released p2");
    }

    @Test
    void shouldAnswerAGrantWhoseOwnPrefillWasGivenUpWhileAnotherIsServed() {
        announce("p1", FIRST);
        announce("p2", FIRST);
        fetch("d1", FIRST, 1);
        end("p2", PrefillOutcome.ABORTED, ContextSlots.NO_SLOT);
        fetch("d2", FIRST, 3);
        assertThat(decoder.reported).containsExactly("failed d2");
        assertThat(decoder.lastFailure).contains("ABORTED");
        compute("p1", FIRST, FIRST_PAGES);
        finish("p1");
        completeAllWrites();

        assertThat(pagesSent()).containsExactlyInAnyOrder("5>1", "6>2");
    }

    @Test
    void shouldSendOneRequestOfAPromptAtATimeWhereContextRowsFollow() {
        prefiller = new Side("prefiller", 1, 4);
        decoder = new Side("decoder", 2, 4);
        connect();
        announce("p1", FIRST);
        announce("p2", FIRST);
        announce("p3", SECOND);

        assertThat(prefiller.reported)
                .as("only prompts that differ are told apart")
                .containsExactly("stopped p2");
    }

    // ---- no digest

    @Test
    void shouldSendOnePromptAtATimeWithoutADigest() {
        TransferKey undigested = new TransferKey(ID, "");
        announce("p1", undigested);
        announce("p2", FIRST);
        fetch("d1", undigested, 1);
        fetch("d2", FIRST, 3);

        assertThat(prefiller.reported).containsExactly("stopped p2", "granted p1 [0, 8)");
        assertThat(decoder.reported).containsExactly("failed d2");
        assertThat(decoder.lastFailure).contains("granted or given up already");
    }
}
