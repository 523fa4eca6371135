package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.GroupRequest;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.PeerGroup;
import java.util.HashSet;
import java.util.List;

/** The peers of a group, looked up once. Messenger's thread. */
final class OutboundGroup implements PeerGroup {
    private final String name;
    private final OutboundPeer[] members;

    /** @throws IllegalArgumentException when there is no member, or one is named twice */
    OutboundGroup(String name, List<OutboundPeer> members) {
        if (members.isEmpty() || new HashSet<>(members).size() < members.size()) {
            throw new IllegalArgumentException("group " + name + " has the members "
                    + members.stream().map(OutboundPeer::name).toList() + ", expected at least one, and each once");
        }
        this.name = name;
        this.members = members.toArray(OutboundPeer[]::new);
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public List<Peer> members() {
        return List.of(members);
    }

    int size() {
        return members.length;
    }

    OutboundPeer member(int index) {
        return members[index];
    }

    /** Whether every live member can take its part of the request, as far as there is one for each. */
    boolean hasRoom(GroupRequest request) {
        int count = Math.min(members.length, request.partCount());
        for (int i = 0; i < count; i++) {
            if (!members[i].isGone() && !members[i].hasRoom(request.part(i).trafficClass())) {
                return false;
            }
        }
        return true;
    }

    /** Why the request may not be submitted, or null. The parts of members that are gone are not checked. */
    String refusal(GroupRequest request) {
        if (request.partCount() != members.length) {
            return "the request has " + request.partCount() + " parts, expected one for each of the " + members.length
                    + " members of group " + name;
        }
        for (int i = 0; i < members.length; i++) {
            String why = members[i].isGone() ? null : members[i].refusal(request.part(i));
            if (why != null) {
                return "member " + i + " of group " + name + ", " + members[i].name() + ": " + why;
            }
        }
        return null;
    }
}
