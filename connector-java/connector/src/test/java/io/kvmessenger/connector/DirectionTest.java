package io.kvmessenger.connector;

import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.classes;
import static com.tngtech.archunit.lang.syntax.ArchRuleDefinition.noClasses;
import static com.tngtech.archunit.library.dependencies.SlicesRuleDefinition.slices;
import static org.assertj.core.api.Assertions.assertThat;

import com.tngtech.archunit.core.domain.JavaClass;
import com.tngtech.archunit.core.domain.JavaClasses;
import com.tngtech.archunit.core.importer.ClassFileImporter;
import com.tngtech.archunit.core.importer.ImportOption;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.RemoteWindow;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** Holds the packages to the directions that docs/architecture.md draws. */
class DirectionTest {
    private static final String ROOT = "io.kvmessenger.";
    private static final String MESSENGER = ROOT + "messenger.";
    private static final List<String> MODULES =
            List.of("kvlayout", "specdecode", "foreign", "transfer", "hooks", "messenger", "weights", "connector");
    private static final JavaClasses PRODUCTION = new ClassFileImporter()
            .withImportOption(new ImportOption.DoNotIncludeTests())
            .importPackages("io.kvmessenger");

    @Test
    void shouldLetLayoutKnowNothingButItself() {
        classes()
                .that()
                .resideInAPackage(ROOT + "kvlayout..")
                .should()
                .onlyDependOnClassesThat()
                .resideInAnyPackage(ROOT + "kvlayout..", "java..")
                .check(PRODUCTION);
    }

    @Test
    void shouldLetWhatADecoderNeedsBesidesKvKnowLayoutOnly() {
        classes()
                .that()
                .resideInAPackage(ROOT + "specdecode..")
                .should()
                .onlyDependOnClassesThat()
                .resideInAnyPackage(ROOT + "specdecode..", ROOT + "kvlayout..", "java..")
                .check(PRODUCTION);
    }

    @Test
    void shouldKeepTransferApartFromEverythingAboveIt() {
        onlyKnows("transfer", "transfer", "foreign");
        onlyKnows("foreign", "foreign");
        onlyKnows("hooks", "hooks");
    }

    @Test
    void shouldLetTheMessengerSeePortsOnly() {
        onlyKnows("messenger", "messenger", "transfer", "kvlayout", "specdecode");
        noClasses()
                .that()
                .resideInAPackage(ROOT + "messenger..")
                .should()
                .dependOnClassesThat()
                .resideInAnyPackage("java.net..", "java.nio.channels..", "io.netty..")
                .check(PRODUCTION);
        noClasses()
                .that()
                .resideInAPackage(ROOT + "messenger..")
                .should()
                .dependOnClassesThat()
                .areAssignableTo(Thread.class)
                .check(PRODUCTION);
    }

    /** A subject of its own on the same sessions and the same duty cycle, without anything of the KV cache. */
    @Test
    void shouldLetWeightsKnowNothingOfTheKvCache() {
        onlyKnows("weights", "weights", "messenger", "transfer");
        noClasses()
                .that()
                .resideInAPackage(ROOT + "weights..")
                .should()
                .dependOnClassesThat()
                .resideInAnyPackage(MESSENGER + "kv", MESSENGER + "prefill", MESSENGER + "decode", MESSENGER + "pages")
                .orShould()
                .dependOnClassesThat()
                .haveSimpleName("KvCache")
                .check(PRODUCTION);
    }

    /** Each room of the messenger, and what it may know of the others. */
    @Test
    void shouldLetTheMessengersRoomsSeeThoseBelowOnly() {
        Map<String, Set<String>> known = Map.of(
                "port", Set.of(),
                "wire", Set.of("port"),
                "pages", Set.of(),
                "session", Set.of("port", "wire"),
                "kv", Set.of("port", "wire", "session"),
                "prefill", Set.of("port", "wire", "pages", "session", "kv"),
                "decode", Set.of("port", "wire", "pages", "session", "kv"));
        known.forEach((room, below) -> {
            noClasses()
                    .that()
                    .resideInAPackage(MESSENGER + room)
                    .should()
                    .dependOnClassesThat()
                    .resideInAPackage(ROOT + "messenger")
                    .check(PRODUCTION);
            for (String other : known.keySet()) {
                if (!other.equals(room) && !below.contains(other)) {
                    noClasses()
                            .that()
                            .resideInAPackage(MESSENGER + room)
                            .should()
                            .dependOnClassesThat()
                            .resideInAPackage(MESSENGER + other)
                            .check(PRODUCTION);
                }
            }
        });
        Set<String> rooms = PRODUCTION.stream()
                .map(JavaClass::getPackageName)
                .filter(name -> name.startsWith(MESSENGER))
                .map(name -> name.substring(MESSENGER.length()))
                .collect(Collectors.toSet());
        assertThat(rooms).isEqualTo(known.keySet());
    }

    /** What opens a transfer engine alone sets an option of a transport where that has declared it. */
    @Test
    void shouldLetTheMessengerNameNoTransport() {
        noClasses()
                .that()
                .resideOutsideOfPackages(ROOT + "transfer..", ROOT + "testkit..", ROOT + "benchmarks..")
                .should()
                .dependOnClassesThat()
                .resideInAnyPackage(
                        ROOT + "transfer.tcp..",
                        ROOT + "transfer.shm..",
                        ROOT + "transfer.cuda..",
                        ROOT + "transfer.libfabric..",
                        ROOT + "transfer.verbs..")
                .check(PRODUCTION);
    }

    /** What the duty cycle serves is a subject; which one, it does not know. */
    @Test
    void shouldLetTheDutyCycleKnowNoSubject() {
        noClasses()
                .that()
                .haveFullyQualifiedName(ROOT + "messenger.Messenger")
                .should()
                .dependOnClassesThat()
                .resideInAnyPackage(MESSENGER + "kv", MESSENGER + "prefill", MESSENGER + "decode", MESSENGER + "pages")
                .orShould()
                .dependOnClassesThat()
                .haveSimpleName("KvCache")
                .check(PRODUCTION);
    }

    /** What opens and runs a messenger is the same for every subject; a loader finds those that there are. */
    @Test
    void shouldLetOnlyItsOwnHalfOfTheConnectorKnowTheKvCache() {
        noClasses()
                .that()
                .resideInAPackage(ROOT + "connector")
                .and()
                .haveNameNotMatching(".*\\.(Kv|CommandReader|HookedLayerProgress|HttpIntake).*")
                .should()
                .dependOnClassesThat()
                .resideInAnyPackage(
                        ROOT + "kvlayout..",
                        ROOT + "specdecode..",
                        MESSENGER + "kv",
                        MESSENGER + "prefill",
                        MESSENGER + "decode",
                        MESSENGER + "pages")
                .orShould()
                .dependOnClassesThat()
                .haveNameMatching(".*\\.(Kv\\w*|EngineCommand|EngineEvents|EngineIntake|LayerProgress)(\\$.*)?")
                .check(PRODUCTION);
    }

    /** Weights, or a store, are other subjects of the same sessions. */
    @Test
    void shouldLetSessionsKnowNothingOfKvAndOfTransfers() {
        noClasses()
                .that()
                .resideInAPackage(MESSENGER + "session")
                .should()
                .dependOnClassesThat()
                .resideInAnyPackage(ROOT + "kvlayout..", ROOT + "specdecode..", ROOT + "transfer..")
                .orShould()
                .dependOnClassesThat()
                .haveSimpleName("GeometryWire")
                .orShould()
                .dependOnClassesThat()
                .haveSimpleName("PeerContextRow")
                .check(PRODUCTION);
    }

    /** The engine may move a window to another generation under the messenger, which names it by what the engine returned. */
    @Test
    void shouldLetTheMessengerKnowNoGenerations() {
        noClasses()
                .that()
                .resideInAPackage(ROOT + "messenger..")
                .should()
                .dependOnClassesThat()
                .areAssignableTo(Imm.class)
                .orShould()
                .callMethod(RemoteWindow.class, "imm")
                .check(PRODUCTION);
    }

    @Test
    void shouldCallNativeFunctionsFromForeignOnly() {
        noClasses()
                .that()
                .resideOutsideOfPackage(ROOT + "foreign..")
                .should()
                .dependOnClassesThat()
                .areAssignableTo(Linker.class)
                .orShould()
                .dependOnClassesThat()
                .areAssignableTo(SymbolLookup.class)
                .orShould()
                .callMethod(MemorySegment.class, "reinterpret", long.class)
                .check(PRODUCTION);
    }

    @Test
    void shouldHaveNoCycles() {
        slices().matching(ROOT + "(*)..").should().beFreeOfCycles().check(PRODUCTION);
        slices().matching(MESSENGER + "(*)").should().beFreeOfCycles().check(PRODUCTION);
    }

    private static void onlyKnows(String who, String... whom) {
        for (String other : MODULES) {
            if (!List.of(whom).contains(other)) {
                noClasses()
                        .that()
                        .resideInAPackage(ROOT + who + "..")
                        .should()
                        .dependOnClassesThat()
                        .resideInAPackage(ROOT + other + "..")
                        .check(PRODUCTION);
            }
        }
    }

    /** Where the writes of a grant may land is computed once by each side, and handed on. */
    @Test
    void shouldComputeTheAreaOfAGrantOnceASide() {
        assertThat(callersOf("messenger.pages.GrantedRanges", "of"))
                .containsExactlyInAnyOrder("Decoder.describeArea", "LayerWriter.area");
        assertThat(callersOf("messenger.prefill.LayerWriter", "area")).containsExactly("DecoderFrames.begin");
    }

    /** One for each call in the code. */
    private static List<String> callersOf(String name, String method) {
        return PRODUCTION.get(ROOT + name).getMethods().stream()
                .filter(candidate -> candidate.getName().equals(method))
                .flatMap(candidate -> candidate.getCallsOfSelf().stream())
                .map(call -> call.getOriginOwner().getSimpleName() + "."
                        + call.getOrigin().getName())
                .toList();
    }
}
